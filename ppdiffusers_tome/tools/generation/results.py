"""A generated image and its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.measure.units import format_count

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class GeneratedImage:
    """An image and what it took."""

    image: Image.Image
    seconds: float  # of the whole call, with decoding
    peak_bytes: int | None  # with the weights; None if it could not be measured
    denoising_peak_bytes: int | None  # until the end of the last denoising step
    is_disturbed: bool = False  # by other programs, so that the seconds mislead


def format_run(run: Mapping[str, Any]) -> str:
    """Format what ``LoadedPipeline.describe_run`` returns as one line."""
    ways = {
        f"ControlNet {(run['controlnet'] or {}).get('model')}": run["controlnet"], "xformers": run["xformers"],
        f"compiled in {run['compile']}": run["compile"],
    }  # fmt: skip
    return (
        f"{run['model']} model, {run['width']}x{run['height']} pixels, {format_count(run['steps'], 'step')}, "
        f"{run['scheduler']}, guidance {run['guidance_scale']:g}, {run['dtype']}"
        + "".join(f", {words}" for words, is_used in ways.items() if is_used)
    )
