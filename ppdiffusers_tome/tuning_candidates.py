"""The settings that tuning tries: families from mild to strong, and what is kept in all of them. Knows no Paddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.settings.config import ToMeConfig, check_names
from ppdiffusers_tome.settings.overrides import apply_overrides
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.settings.types import LEVELS, to_python, truncated_repr

# What keeps most at its speed (docs/en/results/fidelity.md): of a UNet the presets, of a transformer proportional
# attention and keys, of both all but the last steps. Plain merging also works where blocks have no layers for keys
# and attention takes no mask.
TRIED = (
    *(ToMeConfig.preset(name) for name in presets()), replace(ToMeConfig.preset("balanced"), end=0.9),
    ToMeConfig(0.5, method="keys"), ToMeConfig(0.75, method="keys"),
    ToMeConfig(0.3, proportional=True), ToMeConfig(0.5, proportional=True),
    ToMeConfig(0.6, tile=8, proportional=True, end=0.9),
    ToMeConfig(0.8, sx=4, sy=4, tile=8, proportional=True, end=0.9),
    ToMeConfig(0.7, end=0.5), ToMeConfig(0.5), ToMeConfig(0.7),
)  # fmt: skip


def candidates(
    config: ToMeConfig | str | Path | None = None, settings: Mapping[str, Any] | None = None,
    families: Mapping[str, Sequence[ToMeConfig]] | None = None,
) -> dict[str, list[ToMeConfig]]:  # fmt: skip
    """What is to be tried, by family and from mild to strong; none twice in a family.

    Args:
        config, settings: as for ``kept_settings``; what they make impossible is left out.
        families: to begin with instead of ``TRIED``.

    Raises:
        ToMeTypeError: a setting is of the wrong type, or is none.
        ToMeValueError: nothing is left.
    """
    kept, refusal = kept_settings(config, settings), None
    chosen: dict[str, list[ToMeConfig]] = {}
    for name, members in ([(None, TRIED)] if families is None else families.items()):
        for member in members:
            try:
                candidate = replace(member, **kept)
            except ToMeValueError as error:
                refusal = error
                continue
            family = _family(candidate) if name is None else name
            if families is None and "proportional" not in kept:
                candidate = _plainly(candidate)
            if candidate not in chosen.setdefault(family, []):
                chosen[family].append(candidate)
    if families is None:
        chosen = {family: sorted(members, key=_strength) for family, members in chosen.items()}
    if not chosen:
        given = ", ".join(f"{name}={truncated_repr(value)}" for name, value in kept.items())
        why = "families has no settings" if refusal is None else f"no settings are possible with {given}; {refusal}"
        raise ToMeValueError(f"there is nothing to try: {why}")
    return chosen


def kept_settings(
    config: ToMeConfig | str | Path | None = None, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:  # fmt: skip
    """The settings that all candidates have.

    Args:
        config: all settings of it but the ratio. It may be the name of a preset, or a JSON file.
        settings: by name; they replace those of the config.

    Raises:
        ToMeTypeError, ToMeValueError: the settings do not go together with the config, or have no such name.
    """
    settings = {} if settings is None else dict(settings)
    check_names(settings)
    if config is None:
        return settings
    whole = vars(apply_overrides(config, {"ratio": 0.0, **settings}))
    return {name: value for name, value in whole.items() if name != "ratio" or name in settings}


def _family(config: ToMeConfig) -> str:
    """What settings have in common that differ by their strength alone."""
    proportional = ", proportional" if _plainly(config).proportional else ""
    part = "" if (config.start, config.end) == (0, 1) else f", from {config.start:g} to {config.end:g}"
    return f"{to_python(config.method)}{proportional}{part}"


def _plainly(config: ToMeConfig) -> ToMeConfig:
    """The same, without ``proportional`` where it asks for what the method does anyway."""
    plainly = replace(config, proportional=None)
    return plainly if plainly.uses_group_sizes == config.uses_group_sizes else config


def _strength(config: ToMeConfig) -> tuple[float, int]:
    return max(config.highest_ratio(level) for level in LEVELS), config.sx * config.sy
