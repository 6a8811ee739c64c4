"""Presets: JSON files as ``ToMeConfig.save`` writes them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

FOLDER = Path(__file__).parent


def presets() -> list[str]:
    """List the names of the presets."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def is_preset(name: Any) -> TypeGuard[str | Path]:
    """Return True for the name of a preset, False for anything else."""
    return isinstance(name, str | PathLike) and str(name) in presets()
