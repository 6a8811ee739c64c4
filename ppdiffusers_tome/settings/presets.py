"""Presets: settings by name."""

from collections.abc import Mapping
from typing import Any

# Chosen by docs/measured/choose_presets.py. Each keeps one key in so many.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {"ratio": 8 / 9, "sx": 3, "sy": 3, "method": "todo"},
    "quality": {"ratio": 3 / 4, "method": "todo"},
}
