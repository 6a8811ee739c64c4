"""UNetMotionModel as in AnimateDiff: Stable Diffusion's blocks on every frame, motion modules over frames between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS, FRAMES = 12, 5, 3
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1,
    down_block_types=("CrossAttnDownBlockMotion",) * 2, up_block_types=("CrossAttnUpBlockMotion",) * 2,
    cross_attention_dim=CROSS_DIM, num_attention_heads=2, norm_num_groups=4, motion_num_attention_heads=2,
    motion_max_seq_length=8,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNetMotionModel

    return built(UNetMotionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    video, text = picture(batch, 4, FRAMES, height, width), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    return model(video, timestep, encoder_hidden_states=text).sample


SPECIMEN = Specimen("AnimateDiff", "UNetMotionModel", build, run)
