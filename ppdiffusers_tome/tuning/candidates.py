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
    common: Mapping[str, Any], families: Mapping[str, Sequence[ToMeConfig]] | None = None, *,
    num_steps: int | None = None,
) -> dict[str, list[ToMeConfig]]:  # fmt: skip
    """List the settings to try by family, from mild to strong.

    All have the common settings; candidates that these make impossible are omitted, and so is the cache over steps of
    ``CANDIDATES`` where there are too few. It is a ``ToMeTypeError`` if families are no settings by family, and a
    ``ToMeValueError`` if no candidate is left.
    """
    if families is None:
        has_few = num_steps is not None and num_steps < MIN_STEPS
        members = [("", config) for config in CANDIDATES if not (config.cache and has_few)]
    else:
        _check_families(families)
        members = [(name, config) for name, configs in families.items() for config in configs]
    refusal: ToMeValueError | None = None
    by_family: dict[str, dict[ToMeConfig, None]] = {}
    for family, member in members:
        try:
            candidate = replace(member, **common)
        except ToMeValueError as error:
            refusal = error
            continue
        family = _name_family(candidate) if families is None else family
        by_family.setdefault(family, {})[candidate] = None  # each once, in order
    if not by_family:
        reason = "families has no settings"
        if refusal is not None:
            reason = f"no settings are possible with {format_settings(common)}; {refusal}"
        raise ToMeValueError(f"there is nothing to try: {reason}")
    return {name: list(each) if families else sorted(each, key=_strength) for name, each in by_family.items()}


def common_settings(config: ToMeConfig | str | Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that all candidates have in common.

    They are those of a config, preset or JSON file, except its ratio, with ``settings`` by name in place of its own.
    """
    check_names(settings)
    if config is None:
        return dict(settings)
    values = vars(combine_settings(config, {"ratio": 0.0, **settings}))
    return {name: value for name, value in values.items() if name != "ratio" or name in settings}


def _check_families(families: Any) -> None:
    accepted = "settings by family, as in families={'mild first': [ToMeConfig(0.3), ToMeConfig(0.5)]}"
    check_type(families, Mapping, accepted, "families=")
    for configs in families.values():
        check_type(configs, list | tuple, accepted, "families: ")
        for config in configs:
            check_type(config, ToMeConfig, accepted, "families: ")


def _strength(config: ToMeConfig) -> tuple[float, ...]:
    """Return what orders the settings of a family from mild to strong."""
    skipped = config.cache if isinstance(config.cache, float) else 0.0
    return config.highest_ratio, config.sx * config.sy, skipped


def _name_family(config: ToMeConfig) -> str:
    """Return a name for all settings that differ in strength alone."""
    if config.cache and config.ratio == 0:
        return "cache over steps"
    interval = "" if (config.start, config.end) == (0, 1) else f", from {config.start:g} to {config.end:g}"
    return f"{config.method}{interval}{', cache over steps' if config.cache else ''}"
