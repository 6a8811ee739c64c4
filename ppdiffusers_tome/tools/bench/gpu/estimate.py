"""The kept estimate of what presets save in whole calls of a denoiser on a GPU. Knows no Paddle; measures nothing.

``estimate.json`` is made by ``ppdiffusers_tome.tools.bench.gpu.presets``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.bench.gpu.cost import DEVICES
from ppdiffusers_tome.tools.bench.gpu.families import FAMILIES, SIZES
from ppdiffusers_tome.tools.cli.console.tables import Table

FILE = Path(__file__).with_name("estimate.json")
COMMAND = "ppdiffusers-tome bench gpu"
FROM_SOURCE = "* needs ppdiffusers 0.29.1 or newer, from PaddleMIX's source"


@dataclass(frozen=True)
class Estimate:
    """One call of a family's denoiser.

    Attributes:
        family, pixels, device: names of ``FAMILIES`` and ``DEVICES``; height and width.
        unmerged: milliseconds.
        presets: milliseconds by preset.
    """

    family: str
    pixels: int
    device: str
    unmerged: float
    presets: dict[str, float]

    def speed_up(self, preset: str) -> float:
        """How many times as fast as unmerged; below 1 where merging costs more than it saves."""
        return self.unmerged / self.presets[preset]


@lru_cache(maxsize=1)
def estimates() -> tuple[Estimate, ...]:
    """Every family at every size on every device, as kept."""
    return tuple(Estimate(**row) for row in json.loads(FILE.read_text(encoding="utf-8")))


def estimated(family: str, pixels: int, device: str) -> Estimate | None:
    """One of them; None where there is none."""
    asked = (family, pixels, device)
    return next((each for each in estimates() if (each.family, each.pixels, each.device) == asked), None)


def listed_device(name: str) -> str:
    """The device of the estimate that a GPU's name is one of; the first where it is none."""
    return next((device.name for device in DEVICES if device.name.split()[0] in name), DEVICES[0].name)


def by_strength() -> list[str]:
    """The presets, the one that saves least first."""
    return sorted(presets(), key=lambda name: ToMeConfig.preset(name).highest_ratio(1))


def heading(device: str) -> str:
    """What stands above the table where it stands alone; it says that this is an estimate."""
    return (
        "What presets save on a GPU: an estimate, not a measurement. Speed-up over no merging, for one call "
        f"of the denoiser on an {device} in half precision with flash attention, everything at peak rates. In every "
        f"cell: {', '.join(by_strength())}."
    )


def table(device: str) -> Table:
    """One row per family and one column per size; in every cell the presets, the one that saves least first."""
    result = Table(["model", *(f"{size}x{size}" for size in SIZES)])
    for family in FAMILIES.values():
        found = [estimated(family.name, size, device) for size in SIZES]
        result.add(family.title + "*" * (not family.released), *map(_cell, found))
    return result


def _cell(estimate: Estimate | None) -> str:
    return "-" if estimate is None else " ".join(f"{estimate.speed_up(name):.2f}x" for name in by_strength())
