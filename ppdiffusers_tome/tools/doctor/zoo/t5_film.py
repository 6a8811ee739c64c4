"""T5FilmDecoder: the decoder of Spectrogram Diffusion, on frames of sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal

if TYPE_CHECKING:
    import paddle

BANDS, FRAMES, WIDTH = 6, 8, 16
SETTINGS: dict[str, Any] = dict(
    input_dims=BANDS, targets_length=FRAMES, d_model=WIDTH, num_layers=2, num_heads=2, d_kv=8, d_ff=16
)


def build() -> Any:
    from ppdiffusers import T5FilmDecoder

    return built(T5FilmDecoder, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """There is no picture, so ``height`` and ``width`` say nothing. ``timestep``: thousandths of the noise left."""
    import paddle

    encoded = [(normal(batch, 5, WIDTH, seed=2), paddle.ones([batch, 5]))]
    return model(encoded, normal(batch, FRAMES, BANDS), paddle.full([batch], timestep / 1000))


SPECIMEN = Specimen("Spectrogram Diffusion", "T5FilmDecoder", build, run)
