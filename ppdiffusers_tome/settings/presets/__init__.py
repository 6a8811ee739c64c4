"""The presets: settings to begin with, as the JSON files that ``ToMeConfig.save`` writes."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def presets() -> list[str]:
    """The names of the presets."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def is_preset(name: Any) -> bool:
    """Whether it is the name of a preset, not of a file or anything else."""
    return isinstance(name, str | PathLike) and str(name) in presets()
