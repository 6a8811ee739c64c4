"""Single settings on top of a preset, config or file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.settings.bounds import check_type
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS, is_preset
from ppdiffusers_tome.settings.text import format_settings


class _Unset:
    """The default of arguments for which None is a valid value."""

    def __repr__(self) -> str:
        return "..."


UNSET: Any = _Unset()  # Any, so that parameters with this default keep their own types


def combine_settings(base: ToMeConfig | str | Path | None, overrides: Mapping[str, Any]) -> ToMeConfig:
    """Replace single settings of a preset, config or file.

    Args:
        base: a config, the name of a preset, or the path of a JSON file; None for the defaults.
        overrides: settings by name. Each replaces that of the base, also with the default; ``UNSET`` replaces none.

    Raises:
        ToMeTypeError, ToMeValueError: as for ``ToMeConfig``. Where an override conflicts with the base, the error says
            which setting comes from where, and what to do.

    Example:
        >>> combine_settings("quality", {"ratio": 0.5, "seed": 1}).summary
        'ratio 0.5, seed 1, method todo'
    """
    overrides = {name: value for name, value in overrides.items() if value is not UNSET}
    defaults = ToMeConfig()
    if base is None or isinstance(base, ToMeConfig):
        config, source, argument = base or defaults, "the config", "config=..."
    elif is_preset(base):
        config, source, argument = ToMeConfig.preset(str(base)), f"the preset {str(base)!r}", f"config={str(base)!r}"
    else:
        accepted = f"a ToMeConfig, the name of a preset ({', '.join(PRESETS)}) or the path of a JSON file of settings"
        check_type(base, str | PathLike, accepted, "config=")
        config, source, argument = ToMeConfig.load(base), str(base), f"config={str(base)!r}"
    try:
        return replace(config, **overrides)
    except ToMeValueError as error:
        # Where both sides are in the conflict, say which setting comes from where, and what to do.
        passed = {name: overrides[name] for name in error.settings if name in overrides}
        others = {name: getattr(config, name) for name in error.settings if name not in passed}
        inherited = {name: value for name, value in others.items() if value != getattr(defaults, name)}
        if passed and inherited:
            verb = "comes" if len(inherited) == 1 else "come"
            error.args = (
                f"{error}. Here {format_settings(inherited)} {verb} from {source}, {format_settings(passed)} from your "
                f"arguments; omit {' and '.join(passed)}, or pass {' or '.join(inherited)} as well, with {argument}",
            )
        raise
