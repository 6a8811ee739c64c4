"""Presets: settings by name."""

from collections.abc import Mapping
from typing import Any

# Chosen by docs/measured/choose_presets.py. "balanced" keeps one key in nine, "quality" one in four.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {"ratio": 8 / 9, "sx": 3, "sy": 3, "method": "todo"},
    "quality": {"ratio": 3 / 4, "method": "todo"},
}
