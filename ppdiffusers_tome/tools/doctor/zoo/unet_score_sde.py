"""UNet2DModel as in the score SDE: a second, smaller picture goes down beside the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, picture

if TYPE_CHECKING:
    import paddle

# Skip blocks have groups of their own, a quarter of the channels and 32 at most.
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=3, out_channels=3, block_out_channels=(32, 32), layers_per_block=1,
    down_block_types=("SkipDownBlock2D", "AttnSkipDownBlock2D"), up_block_types=("AttnSkipUpBlock2D", "SkipUpBlock2D"),
    attention_head_dim=8, norm_num_groups=8, time_embedding_type="fourier", freq_shift=0, flip_sin_to_cos=True,
    center_input_sample=False, mid_block_scale_factor=1.41, norm_eps=1e-6,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DModel

    return built(UNet2DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """Time is a noise level."""
    return model(picture(batch, 3, height, width), timestep / 100).sample


SPECIMEN = Specimen("score SDE", "UNet2DModel", build, run, pipelines="ScoreSdeVePipeline")
