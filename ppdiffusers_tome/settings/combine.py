"""Single settings on top of a preset, config or file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS, is_preset
from ppdiffusers_tome.settings.types import UNSET, check_type, shorten_repr


def combine_settings(base: ToMeConfig | str | Path | None, overrides: Mapping[str, Any]) -> ToMeConfig:
    """Replace single settings of a preset, config or file.

    Args:
        base: a config, the name of a preset, or the path of a JSON file; None for the defaults.
        overrides: settings by name. Each replaces that of the base, also with the default; ``UNSET`` replaces none.

    Raises:
        ToMeTypeError, ToMeValueError: as for ``ToMeConfig``, or an override has no effect. Where it conflicts with a
            setting of the base, the error says which setting comes from where, and what to do.

    Example:
        >>> combine_settings("quality", {"ratio": 0.5, "seed": 1}).summary
        'ratio 0.5, seed 1, method todo'
    """
    overrides = {name: value for name, value in overrides.items() if value is not UNSET}
    if base is None:
        return _refuse_unused(overrides, ToMeConfig(**overrides))
    accepted = f"a ToMeConfig, the name of a preset ({', '.join(PRESETS)}) or the path of a JSON file of settings"
    check_type(base, ToMeConfig | str | PathLike, accepted, "config=")
    if isinstance(base, ToMeConfig):
        config = base
    else:
        config = ToMeConfig.preset(str(base)) if is_preset(base) else ToMeConfig.load(base)
    try:
        return _refuse_unused(overrides, replace(config, **overrides))
    except ToMeValueError as error:
        error.args = (f"{error}{_describe_origins(error.settings, base, config, overrides)}",)
        raise


def _refuse_unused(overrides: Mapping[str, Any], config: ToMeConfig) -> ToMeConfig:
    """Return the config, unless it leaves an override without effect."""
    for name, needed in (("cache_slope", "cache"), ("seed", "use_rand")):
        value, other = getattr(config, name), getattr(config, needed)
        if name in overrides and value != getattr(ToMeConfig(), name) and not other:
            raise ToMeValueError(
                f"{name}={shorten_repr(value)} has no effect with {needed}={other}; omit it, or pass {needed} as well"
            )
    return config


def _describe_origins(
    conflict: Sequence[str], base: ToMeConfig | str | Path, config: ToMeConfig, overrides: Mapping[str, Any]
) -> str:
    """Say where settings that conflict come from, and what to do.

    Returns:
        A sentence; nothing where the overrides are wrong whatever the base.
    """
    defaults, values = vars(ToMeConfig()), vars(config)
    passed = {name: overrides[name] for name in conflict if name in overrides}
    inherited = {name: values[name] for name in conflict if name not in passed and values[name] != defaults[name]}
    if not passed or not inherited:
        return ""
    source = "the config" if base is config else f"the preset {str(base)!r}" if is_preset(base) else str(base)
    argument = "config=..." if base is config else f"config={str(base)!r}"
    return (
        f". Here {_list_settings(inherited)} {'comes' if len(inherited) == 1 else 'come'} from {source}, "
        f"{_list_settings(passed)} from your arguments; omit {' and '.join(passed)}, or pass {' or '.join(inherited)} "
        f"as well, with {argument}"
    )


def _list_settings(settings: Mapping[str, Any]) -> str:
    """Write ``sx=2, sy=2 and ratio=0.5``."""
    *first, last = (f"{name}={shorten_repr(value)}" for name, value in settings.items())
    return f"{', '.join(first)} and {last}" if first else last
