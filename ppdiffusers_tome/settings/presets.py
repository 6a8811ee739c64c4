"""Presets: settings by name."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

# Chosen by docs/measured/choose_presets.py. Each keeps one key in so many.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {"ratio": 8 / 9, "sx": 3, "sy": 3, "method": "todo"},
    "quality": {"ratio": 3 / 4, "method": "todo"},
}


def is_preset(name: Any) -> TypeGuard[str | Path]:
    """Return True for the name of a preset, False for anything else."""
    return isinstance(name, str | PathLike) and str(name) in PRESETS
