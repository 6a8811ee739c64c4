"""An estimate of the speed-up by presets on a GPU; no measurement.

It is of one call of a denoiser. ``tests/benchmarks/gpu_presets.py`` makes ``gpu_estimate.json``.
This module imports no Paddle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.console.tables import Table

FILE = Path(__file__).with_name("gpu_estimate.json")
DEVICES = ("A100 80GB SXM", "H200")
SIZES = (512, 1024, 2048)  # height and width in pixels
TITLES = {
    "sd15": "Stable Diffusion 1.5", "sdxl": "SDXL", "sd3": "SD3 medium", "sd35-medium": "SD3.5 medium*",
    "sd35-large": "SD3.5 large*", "flux": "FLUX.1 dev*",
}  # fmt: skip
FOOTNOTE = "* needs ppdiffusers 0.29.1 or newer, from PaddleMIX's source"


@dataclass(frozen=True)
class Estimate:
    """One call of a family's denoiser.

    Attributes:
        family: of ``TITLES``.
        pixels: height and width.
        device: of ``DEVICES``.
        unmerged: milliseconds.
        presets: milliseconds by preset.
    """

    family: str
    pixels: int
    device: str
    unmerged: float
    presets: dict[str, float]

    def speed_up(self, preset: str) -> float:
        """Return the speed-up over unmerged; below 1 merging costs more than it saves."""
        return self.unmerged / self.presets[preset]


@cache
def load_estimates() -> dict[tuple[str, int, str], Estimate]:
    """Return the estimates by family, pixels and device."""
    rows = [Estimate(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]
    return {(row.family, row.pixels, row.device): row for row in rows}


def closest_device(gpu: str) -> str:
    """Return the device that a GPU's name contains, or else the first."""
    return next((device for device in DEVICES if device.split()[0] in gpu), DEVICES[0])


def presets_by_strength() -> list[str]:
    """Return the presets, from the one that saves least."""
    return sorted(presets(), key=lambda name: ToMeConfig.preset(name).highest_ratio(1))


def estimate_heading(device: str) -> str:
    """Return the heading of the table, which says that it is an estimate."""
    return (
        "What presets save on a GPU: an estimate, not a measurement. Speed-up over no merging, for one call of the "
        f"denoiser on an {device} in half precision with flash attention, everything at peak rates. In every cell: "
        f"{', '.join(presets_by_strength())}."
    )


def estimate_table(device: str) -> Table:
    """Return the speed-ups of all presets by family and size."""
    table = Table(["model", *(f"{size}x{size}" for size in SIZES)])
    for family, title in TITLES.items():
        found = [load_estimates()[family, size, device] for size in SIZES]
        table.add(title, *(" ".join(f"{each.speed_up(name):.2f}x" for name in presets_by_strength()) for each in found))
    return table
