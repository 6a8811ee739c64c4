"""LVDMUNet3DModel as in unconditional video: its attention works on channels before tokens, so nothing merges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.lvdm import FRAMES
from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, picture

if TYPE_CHECKING:
    import paddle

SETTINGS: dict[str, Any] = dict(
    image_size=16, in_channels=4, out_channels=4, model_channels=32, num_heads=2, num_res_blocks=1,
    attention_resolutions=[1, 2], channel_mult=[1, 1], temporal_length=FRAMES, padding_t=0, legacy=False,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import LVDMUNet3DModel

    return built(LVDMUNet3DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    steps = paddle.full([batch], timestep, dtype="int64")
    return model(picture(batch, 4, FRAMES, height, width), steps).sample


SPECIMEN = Specimen(
    "Latent Video Diffusion, unconditional", "LVDMUNet3DModel", build, run, pipelines="LVDMUncondPipeline",
    refused_block="STAttentionBlock",
)  # fmt: skip
