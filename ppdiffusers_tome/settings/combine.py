"""Single settings on top of a preset, config or file."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ppdiffusers_tome.settings.bounds import check_type
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS


class _Unset:
    """The default of arguments for which None is a valid value."""

    def __repr__(self) -> str:
        return "..."


UNSET: Any = _Unset()  # Any, so that parameters with this default keep their own types


def combine_settings(base: ToMeConfig | str | Path | None, changes: Mapping[str, Any]) -> ToMeConfig:
    """Replace single settings of a preset, config or file.

    Args:
        base: a config, the name of a preset, or the path of a JSON file; None for the defaults.
        changes: settings by name. Each replaces that of the base, also with the default; ``UNSET`` replaces none.

    Example:
        >>> combine_settings("quality", {"ratio": 0.5, "seed": 1}).summary
        'ratio 0.5, seed 1, method todo'
    """
    changes = {name: value for name, value in changes.items() if value is not UNSET}
    if base is None or isinstance(base, ToMeConfig):
        return replace(base or ToMeConfig(), **changes)
    if isinstance(base, str) and base in PRESETS:
        return replace(ToMeConfig.preset(base), **changes)
    accepted = f"a ToMeConfig, the name of a preset ({', '.join(PRESETS)}) or the path of a JSON file of settings"
    check_type(base, str | PathLike, accepted, "config=")
    return replace(ToMeConfig.load(base), **changes)
