"""An estimate of the speed-up by presets on a GPU; no measurement.

It is of one call of a denoiser. ``tests/benchmarks/gpu_presets.py`` makes ``gpu_estimate.json``.
This module imports no Paddle.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("gpu_estimate.json")
DEVICES = ("A100 80GB SXM", "H200")
SIZES = (512, 1024, 2048)  # height and width in pixels


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
