"""UNet3DConditionModel as in text to video: attention in every frame, then over frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS, FRAMES = 12, 5, 3
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1,
    down_block_types=("CrossAttnDownBlock3D",) * 2, up_block_types=("CrossAttnUpBlock3D",) * 2,
    cross_attention_dim=CROSS_DIM, attention_head_dim=4, norm_num_groups=4,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet3DConditionModel

    return built(UNet3DConditionModel, **SETTINGS)


def run(
    model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500, frames: int = FRAMES
) -> paddle.Tensor:
    video, text = picture(batch, 4, frames, height, width), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    return model(video, timestep, encoder_hidden_states=text).sample


SPECIMEN = Specimen("text to video, video to video", "UNet3DConditionModel", build, run)
