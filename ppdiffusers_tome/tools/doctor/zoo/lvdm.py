"""LVDMUNet3DModel as in text to video: attention in every frame and over frames, in one block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import (
    GPU_ATTENTION,
    Specimen,
    attention_anywhere,
    built,
    normal,
    picture,
)

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS, FRAMES = 12, 5, 3
SETTINGS: dict[str, Any] = dict(
    image_size=16, in_channels=4, out_channels=4, model_channels=32, num_res_blocks=1, attention_resolutions=[1, 2],
    channel_mult=[1, 1], num_heads=2, transformer_depth=1, context_dim=CROSS_DIM, use_temporal_transformer=True,
    use_relative_position=True, temporal_length=FRAMES, padding_t=0, checkpoint=False,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import LVDMUNet3DModel

    return built(LVDMUNet3DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    steps, text = paddle.full([batch], timestep, dtype="int64"), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    with attention_anywhere():
        return model(picture(batch, 4, FRAMES, height, width), steps, context=text).sample


SPECIMEN = Specimen("Latent Video Diffusion, text to video", "LVDMUNet3DModel", build, run, broken=GPU_ATTENTION)
