"""UniDiffuserModel: timesteps, text and image embedding are tokens before those of the latent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM, IMAGE_DIM, TEXT_TOKENS = 12, 10, 5
SETTINGS: dict[str, Any] = dict(
    text_dim=TEXT_DIM, clip_img_dim=IMAGE_DIM, num_text_tokens=TEXT_TOKENS, num_attention_heads=2,
    attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=16, patch_size=2,
    activation_fn="gelu", norm_type="layer_norm", block_type="unidiffuser", use_data_type_embedding=True,
)  # fmt: skip


def build(**settings: Any) -> Any:
    from ppdiffusers import UniDiffuserModel

    return built(UniDiffuserModel, **{**SETTINGS, **settings})


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """As many tokens as the model was built for, in any shape: its positions are learned, and it returns a square."""
    import paddle

    steps = paddle.full([batch], timestep, dtype="float32")
    predicted = model(
        latent_image_embeds=picture(batch, 4, height, width), image_embeds=normal(batch, 1, IMAGE_DIM, seed=2),
        prompt_embeds=normal(batch, TEXT_TOKENS, TEXT_DIM, seed=3), timestep_img=steps, timestep_text=steps,
    )  # fmt: skip
    return paddle.concat([part.flatten() for part in predicted])


SPECIMEN = Specimen("UniDiffuser", "UniDiffuserModel", build, run, size=(16, 16))
