"""Validation of ``ToMeConfig``: types, ranges, and settings that conflict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, TypeGuard

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.types import (
    LEVELS,
    Bounds,
    ByLevel,
    check_type,
    describe_type,
    did_you_mean,
    format_settings,
    shorten_repr,
    to_python,
)

_SLOPE = Bounds(
    Real, "how much of the slope a skipped step follows, 0 (reuse) to 2, such as 0.75, or one for each step", 0, 2
)
_CACHE = Bounds(
    Real, "the fraction of steps to skip, 0 <= cache < 1, or a list of computed steps", 0, math.nextafter(1, 0)
)
_LEVELS_BY_NAME = {str(level): level for level in LEVELS}  # the keys of a JSON object are strings


def check_settings(settings: Sequence[Field[Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check all settings and return them in Python's own types.

    Args:
        settings: the fields of ``ToMeConfig``, whose metadata has the bounds of most.
        values: of every setting, by name.
    """
    values = {name: to_python(value) for name, value in values.items()}
    for each in settings:
        if "bounds" in each.metadata:
            values[each.name] = each.metadata["bounds"].check(each.name, values[each.name])
    _check_cache(values)
    _check_conflicts(values)
    for other, names, reason in _list_unused(values):
        defaults = {each.name: each.default for each in settings if each.name in names}
        if unused := {name: values[name] for name in names if values[name] != defaults[name]}:
            raise ToMeValueError(
                f"{format_settings(unused)} {'has' if len(unused) == 1 else 'have'} no effect with {other}="
                f"{shorten_repr(values[other])}, as {reason}; leave "
                f"{format_settings({name: defaults[name] for name in unused})}, or change {other}",
                settings=(*unused, other),
            )
    values["ratio"] = _check_ratio(values["ratio"], values)
    return values


def _list_unused(values: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str], str]]:
    """Yield each setting that leaves others without effect, these, and why."""
    for name, reason in METHODS[values["method"]].unsupported_settings.items():
        yield "method", [name], reason
    if isinstance(values["ratio"], Mapping):
        yield "ratio", ["max_downsample"], "that names its levels"
    if not values["use_rand"]:
        yield "use_rand", ["seed"], "nothing is chosen at random"
    if values["proportional"] and not values["merge_attn"]:
        yield "merge_attn", ["proportional"], "it is for attention on merged tokens"
    if not values["cache"]:
        yield "cache", ["cache_slope", "cache_steps", "cache_scheduler"], "no step is skipped"
    elif not isinstance(values["cache"], tuple):
        yield "cache", ["cache_steps", "cache_scheduler"], "it needs cache to list the steps"


def _check_cache(values: dict[str, Any]) -> None:
    """Check and convert the settings of the cache over steps."""
    cache, steps, slope = (values[name] for name in ("cache", "cache_steps", "cache_slope"))
    if _is_sequence(cache):
        computed = [to_python(step) for step in cache]
        for step in computed:
            check_type(step, Integral, _CACHE.accepted, "cache=")
        if not computed or computed[0] != 0 or any(left >= right for left, right in pairwise(computed)):
            raise ToMeValueError(
                f"cache={shorten_repr(cache)} must list the computed steps in order, from 0: (0, 1, 2, 5, 8, 9)"
            )
        if steps is not None and computed[-1] >= steps:
            raise ToMeValueError(
                f"cache={shorten_repr(cache)} lists step {computed[-1]}, and cache_steps={steps} has steps 0 to "
                f"{steps - 1}; raise cache_steps, or end the list earlier",
                settings=("cache", "cache_steps"),
            )
        values["cache"] = tuple(map(int, computed))
    else:
        values["cache"] = _CACHE.check("cache", cache)
    if not _is_sequence(slope):
        values["cache_slope"] = _SLOPE.check("cache_slope", slope)
    elif len(slope) == steps:
        values["cache_slope"] = tuple(_SLOPE.check("cache_slope", each) for each in slope)
    else:
        raise ToMeValueError(
            f"cache_slope={shorten_repr(slope)} must have one number for each of cache_steps={steps} steps; got "
            f"{len(slope)}",
            settings=("cache_slope", "cache_steps"),
        )


def _check_conflicts(values: Mapping[str, Any]) -> None:
    """Check that settings other than the ratio fit each other."""
    tile, sx, sy, start, end = (values[name] for name in ("tile", "sx", "sy", "start", "end"))
    layers = ("merge_attn", "merge_crossattn", "merge_mlp")
    if sx * sy * values["st"] == 1:
        raise ToMeValueError(
            "sx=1 and sy=1 make every token a destination, so nothing could merge; use a stride such as sx=2, sy=2",
            settings=("sx", "sy", "st"),
        )
    if tile is not None and tile < max(sx, sy):
        raise ToMeValueError(
            f"tile={shorten_repr(tile)} must be at least {shorten_repr(max(sx, sy))} for a "
            f"{_format_stride(sx, sy)} stride, so that a tile holds a destination; 16 is a good size, and None "
            "compares all with all",
            settings=("tile", "sx", "sy"),
        )
    if not start < end:
        raise ToMeValueError(
            f"start={start:g} must be below end={end:g}; both are fractions of the denoising",
            settings=("start", "end"),
        )
    if not any(values[name] for name in layers):
        raise ToMeValueError(
            "merge_attn, merge_crossattn and merge_mlp are all False, so nothing would merge; "
            "set at least merge_attn=True, or call remove_tome() to go back to the plain model",
            settings=layers,
        )


def _check_ratio(ratio: Any, values: Mapping[str, Any]) -> float | tuple[float, ...] | ByLevel:
    """Check a ratio, a ramp, or a mapping of either by level."""
    if not isinstance(ratio, Mapping):
        return _check_ramp("ratio", ratio, values)
    text = shorten_repr(dict(ratio))
    ramps: dict[int, float | tuple[float, ...]] = {}
    for level, ramp in ((to_python(level), to_python(ramp)) for level, ramp in ratio.items()):
        number = _LEVELS_BY_NAME.get(level, 0) if isinstance(level, str) else level
        if isinstance(number, bool) or not isinstance(number, Integral) or number not in LEVELS:
            raise ToMeValueError(
                f"ratio={text} has level {shorten_repr(level)}; levels are 1, 2, 4 and 8, as in {{1: 0.5, 2: 0.25}}"
            )
        if int(number) in ramps:  # 1, "1" and a tensor that holds 1 are three keys
            raise ToMeValueError(f"ratio={text} names level {number} twice; give each level once")
        ramps[int(number)] = _check_ramp(f"ratio[{number}]", ramp, values)
    if not ramps:
        raise ToMeValueError("ratio={} names no level; give one such as {1: 0.5}")
    return ByLevel(ramps)


def _check_ramp(name: str, ramp: Any, values: Mapping[str, Any]) -> float | tuple[float, ...]:
    if not _is_sequence(ramp):
        return _check_fraction(name, ramp, values)
    if len(ramp) < 2:
        raise ToMeValueError(f"{name}={shorten_repr(ramp)} must be a number, or a ramp of two or more: (0.7, 0.3)")
    return tuple(_check_fraction(f"{name}[{i}]", to_python(ratio), values) for i, ratio in enumerate(ramp))


def _check_fraction(name: str, ratio: Any, values: Mapping[str, Any]) -> float:
    if isinstance(ratio, bool) or not isinstance(ratio, Real):
        suggestion = did_you_mean(ratio, PRESETS) if isinstance(ratio, str) else ""
        if str(ratio).endswith(".json"):
            suggestion = f"; pass a file of settings as config={str(ratio)!r}"
        raise ToMeTypeError(
            f"{name}={shorten_repr(ratio)} must be a number, the fraction of tokens to merge, such as 0.5, or the "
            f"name of a preset ({', '.join(PRESETS)}); got {describe_type(ratio)}{suggestion}"
        )
    stride = [values["sx"], values["sy"], values["st"]]
    limit = 1 - 1 / math.prod(stride)
    # Where every query stays, the destinations alone may remain as keys.
    may_reach_limit = METHODS[values["method"]].keeps_queries
    if may_reach_limit and 0 <= ratio < 1 and f"{ratio:.4g}" == f"{limit:.4g}":  # as a summary shows it
        ratio = limit
    if 0 <= ratio < limit or (ratio == limit and may_reach_limit):
        return float(ratio)
    remedy = "raise the ratio to 0 or more" if ratio < 0 else "lower the ratio or enlarge the stride"
    remedy = "give a number such as 0.5" if ratio != ratio else remedy  # NaN
    highest = f"{'at most' if may_reach_limit else 'below'} {math.floor(limit * 1e6) / 1e6:g}"  # rounded down
    raise ToMeValueError(
        f"{name}={shorten_repr(ratio)} must be at least 0 and {highest} for a "
        f"{_format_stride(*stride)} stride; {remedy}",
        settings=("ratio", "sx", "sy", "st", "method") if ratio == limit else ("ratio", "sx", "sy", "st"),
    )


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _format_stride(sx: int, sy: int, st: int = 1) -> str:
    return "x".join(map(shorten_repr, (sx, sy) if st == 1 else (sx, sy, st)))
