"""UNet1DModel: Dance Diffusion, on the waveform of a sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal

if TYPE_CHECKING:
    import paddle

SETTINGS: dict[str, Any] = dict(
    sample_size=64, extra_in_channels=16, block_out_channels=(32, 32, 32), norm_num_groups=4
)


def build() -> Any:
    from ppdiffusers import UNet1DModel

    model = built(UNet1DModel, **SETTINGS)
    # Drawn at random, but not as a parameter.
    model.time_proj.weight.set_value(normal(*model.time_proj.weight.shape, seed=1))
    return model


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """The sound has as many samples as a picture of that height and width has pixels."""
    return model(normal(batch, 2, height * width), timestep).sample


SPECIMEN = Specimen("Dance Diffusion", "UNet1DModel", build, run)
