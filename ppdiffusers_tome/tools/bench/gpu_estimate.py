"""An estimate of the speed-up by presets on a GPU; no measurement.

It is of one call of a denoiser. ``tests/benchmarks/gpu_presets.py`` makes ``gpu_estimate.json``.
This module imports no Paddle.
"""

from __future__ import annotations

import json
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


@cache
def load_estimates() -> dict[tuple[str, int, str], dict[str, float]]:
    """Return the speed-ups by preset, of each family, size and device.

    Below 1 merging costs more than it saves.
    """
    estimates = {}
    for row in json.loads(FILE.read_text(encoding="utf-8")):
        by_preset = {name: row["unmerged"] / milliseconds for name, milliseconds in row["presets"].items()}
        estimates[row["family"], row["pixels"], row["device"]] = by_preset
    return estimates


def closest_device(gpu: str) -> str:
    """Return the device that a GPU's name contains, or else the first."""
    return next((device for device in DEVICES if device.split()[0] in gpu), DEVICES[0])


def presets_by_strength() -> list[str]:
    """Return the presets, from the one that saves least."""
    return sorted(presets(), key=lambda name: ToMeConfig.preset(name).highest_ratio(1))


def estimate_table(device: str) -> Table:
    """Return the speed-ups of all presets by family and size."""
    table = Table(["model", *(f"{size}x{size}" for size in SIZES)])
    for family, title in TITLES.items():
        found = [load_estimates()[family, size, device] for size in SIZES]
        table.add(title, *(" ".join(f"{each[name]:.2f}x" for name in presets_by_strength()) for each in found))
    return table
