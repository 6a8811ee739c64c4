"""UNet2DModel as in Audio Diffusion: spectrograms with one channel, attention at the coarse level alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, picture

if TYPE_CHECKING:
    import paddle

SETTINGS: dict[str, Any] = dict(
    sample_size=(16, 16), in_channels=1, out_channels=1, block_out_channels=(8, 16), layers_per_block=1,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8, norm_num_groups=4,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DModel

    return built(UNet2DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    return model(picture(batch, 1, height, width), timestep).sample


SPECIMEN = Specimen("Audio Diffusion", "UNet2DModel", build, run, pipelines="AudioDiffusionPipeline")
