"""Hotshot-XL's UNet3DConditionModel: SDXL's blocks on every frame. Another class than text to video's, of its name.

Its attention over frames normalises 32 groups of channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS, POOLED_DIM, FRAMES = 12, 5, 10, 3
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(32, 32), layers_per_block=1,
    down_block_types=("DownBlock3D", "CrossAttnDownBlock3D"), up_block_types=("CrossAttnUpBlock3D", "UpBlock3D"),
    cross_attention_dim=CROSS_DIM, attention_head_dim=2, norm_num_groups=8, use_linear_projection=True,
    addition_embed_type="text_time", addition_time_embed_dim=4,
    projection_class_embeddings_input_dim=6 * 4 + POOLED_DIM,
)  # fmt: skip
BROKEN = "with Paddle 2.6 ppdiffusers fails on the timesteps that schedulers give it"


def build() -> Any:
    from ppdiffusers.models.hotshot_xl.unet import UNet3DConditionModel

    return built(UNet3DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    sizes = paddle.to_tensor([[8.0 * height, 8.0 * width, 0.0, 0.0, 8.0 * height, 8.0 * width]] * batch)
    return model(
        picture(batch, 4, FRAMES, height, width),
        paddle.to_tensor([timestep]),
        encoder_hidden_states=normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2),
        added_cond_kwargs={"text_embeds": normal(batch, POOLED_DIM, seed=3), "time_ids": sizes},
    ).sample


SPECIMEN = Specimen(
    "Hotshot-XL", "UNet3DConditionModel", build, run, pipelines="HotshotXL.*Pipeline", broken=BROKEN
)
