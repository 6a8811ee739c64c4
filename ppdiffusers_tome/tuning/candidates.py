"""Candidates of tuning, in families from mild to strong. Imports no Paddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.settings.bounds import check_type
from ppdiffusers_tome.settings.combine import combine_settings
from ppdiffusers_tome.settings.config import ToMeConfig, check_names
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS
from ppdiffusers_tome.settings.text import format_settings

# The most similar images at their speed (docs/en/results/fidelity.md) come from the presets in a UNet, from "keys" in a
# transformer, and in both from unmerged last steps. Plain merging also works where blocks have no layers for keys. A
# cache over steps goes with the best of each model (docs/en/results/step-caches.md).
_CACHED = (
    ToMeConfig(0.0), replace(ToMeConfig.preset("balanced"), end=0.9), ToMeConfig.preset("balanced"),
    ToMeConfig(0.75, method="keys", tile=8, end=0.9),
)  # fmt: skip
CANDIDATES = (
    *(ToMeConfig.preset(name) for name in PRESETS), replace(ToMeConfig.preset("balanced"), end=0.9),
    ToMeConfig(0.5, method="keys"), ToMeConfig(0.75, method="keys"),
    ToMeConfig(0.75, method="keys", tile=8, end=0.9), ToMeConfig(0.9, method="keys", sx=4, sy=4, tile=8, end=0.9),
    ToMeConfig(0.7, end=0.5), ToMeConfig(0.3), ToMeConfig(0.5), ToMeConfig(0.7),
    *(replace(config, cache=cache) for config in _CACHED for cache in (0.2, 0.3, 0.5, 0.6)),
)  # fmt: skip


def list_candidates(
    common: Mapping[str, Any], candidates: Sequence[ToMeConfig] | None = None, *, steps: int | None = None
) -> dict[str, list[ToMeConfig]]:
    """List the settings to try by family, from mild to strong.

    All have the common settings. Candidates that these make impossible are omitted, and of ``CANDIDATES`` those that
    skip steps where there are few. It is a ``ToMeTypeError`` if candidates are no settings, and a ``ToMeValueError`` if
    none is left.
    """
    members = CANDIDATES if candidates is None else candidates
    for member in members:
        check_type(member, ToMeConfig, "settings, as in candidates=[ToMeConfig(0.3), ToMeConfig(0.5)]", "candidates: ")
    if candidates is None and steps is not None and steps < MIN_STEPS:
        members = [member for member in members if not member.cache]
    refusal: ToMeValueError | None = None
    families: dict[str, dict[ToMeConfig, None]] = {}
    for member in members:
        try:
            candidate = replace(member, **common)
        except ToMeValueError as error:
            refusal = error
        else:
            families.setdefault(_name_family(candidate), {})[candidate] = None  # each once
    if not families:
        reason = "candidates has no settings"
        if refusal is not None:
            reason = f"no settings are possible with {format_settings(common)}; {refusal}"
        raise ToMeValueError(f"there is nothing to try: {reason}")
    return {name: sorted(configs, key=_rank_strength) for name, configs in families.items()}


def collect_common_settings(config: ToMeConfig | str | Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that all candidates have in common.

    They are those of a config, preset or JSON file, except its ratio, with ``settings`` by name in place of its own.
    """
    check_names(settings)
    if config is None:
        return dict(settings)
    values = vars(combine_settings(config, {"ratio": 0.0, **settings}))
    return {name: value for name, value in values.items() if name != "ratio" or name in settings}


def _rank_strength(config: ToMeConfig) -> tuple[float, ...]:
    """Return what orders the settings of a family from mild to strong."""
    skipped = config.cache if isinstance(config.cache, float) else 0.0
    return config.highest_ratio, config.sx * config.sy, skipped


def _name_family(config: ToMeConfig) -> str:
    """Return a name for all settings that differ in strength alone."""
    if config.cache and config.ratio == 0:
        return "cache over steps"
    interval = "" if (config.start, config.end) == (0, 1) else f", from {config.start:g} to {config.end:g}"
    return f"{config.method}{interval}{', cache over steps' if config.cache else ''}"
