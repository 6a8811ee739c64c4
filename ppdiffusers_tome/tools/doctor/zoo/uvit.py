"""UViTT2IModel: the timestep and the text are tokens before those of the picture; long skips, one grid throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM, TEXT_TOKENS = 12, 5
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, patch_size=2, num_layers=2, num_attention_heads=2,
    attention_head_dim=8, clip_dim=TEXT_DIM, num_text_tokens=TEXT_TOKENS,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers.models.uvit_t2i import UViTT2IModel

    return built(UViTT2IModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """As many tokens as the model was built for, in any shape: its positions are learned, and it returns a square."""
    import paddle

    latent, text = picture(batch, 4, height, width), normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2)
    return model(latent, paddle.to_tensor([timestep], dtype="float32"), text).sample


SPECIMEN = Specimen("U-ViT, text to image", "UViTT2IModel", build, run, size=(16, 16))
