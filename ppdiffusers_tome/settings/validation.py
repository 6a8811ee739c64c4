"""Validation of ``ToMeConfig``: types, ranges, and settings that conflict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.bounds import Bounds, to_python
from ppdiffusers_tome.settings.ratio import check_ratio
from ppdiffusers_tome.settings.removals import refuse_removed
from ppdiffusers_tome.settings.text import format_settings, shorten_repr

_CACHE = Bounds(
    Real, "the fraction of steps to skip, 0 <= cache < 1, or a list of computed steps", 0, math.nextafter(1, 0)
)
_STEP = Bounds(Integral, _CACHE.accepted)


def check_settings(settings: Sequence[Field[Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check all settings and return them in Python's own types.

    Args:
        settings: the fields of ``ToMeConfig``, whose metadata has the bounds of most.
        values: of every setting, by name.
    """
    values = {name: to_python(value) for name, value in values.items()}
    refuse_removed(values)
    for each in settings:
        if "bounds" in each.metadata:
            values[each.name] = each.metadata["bounds"].check(each.name, values[each.name])
    values["cache"] = _check_cache(values["cache"])
    _check_conflicts(values)
    for other, names, reason in _list_unused(values):
        defaults = {each.name: each.default for each in settings if each.name in names}
        if unused := {name: values[name] for name in names if values[name] != defaults[name]}:
            raise ToMeValueError(
                f"{format_settings(unused)} {'has' if len(unused) == 1 else 'have'} no effect with {other}="
                f"{shorten_repr(values[other])}, as {reason}; leave "
                f"{format_settings({name: defaults[name] for name in unused})}, or change {other}"
            )
    values["ratio"] = check_ratio(values["ratio"], values)
    return values


def _list_unused(values: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str], str]]:
    """Yield each setting that leaves others without effect, these, and why."""
    for name, reason in METHODS[values["method"]].unsupported_settings.items():
        yield "method", [name], reason
    if not values["use_rand"]:
        yield "use_rand", ["seed"], "nothing is chosen at random"


def _check_cache(cache: Any) -> float | tuple[int, ...]:
    """Check and convert the fraction or list of the cache over steps."""
    if isinstance(cache, str | bytes) or not isinstance(cache, Sequence):
        return _CACHE.check("cache", cache)
    computed = tuple(_STEP.check("cache", step) for step in cache)
    if len(computed) < 2 or computed[0] != 0 or any(left >= right for left, right in pairwise(computed)):
        raise ToMeValueError(
            f"cache={shorten_repr(cache)} must list the computed steps in order, from 0 to the last step of the "
            "denoising: (0, 1, 2, 5, 8, 9) of ten"
        )
    return computed


def _check_conflicts(values: Mapping[str, Any]) -> None:
    """Check that settings other than the ratio fit each other."""
    tile, sx, sy, start, end = (values[name] for name in ("tile", "sx", "sy", "start", "end"))
    layers = ("merge_attn", "merge_crossattn", "merge_mlp")
    if sx * sy * values["st"] == 1:
        raise ToMeValueError(
            "sx=1 and sy=1 make every token a destination, so nothing could merge; use a stride such as sx=2, sy=2"
        )
    if tile is not None and tile < max(sx, sy):
        raise ToMeValueError(
            f"tile={shorten_repr(tile)} must be at least {shorten_repr(max(sx, sy))} for a {shorten_repr(sx)}x"
            f"{shorten_repr(sy)} stride, so that a tile holds a destination; 16 is a good size, and None "
            "compares all with all"
        )
    if not start < end:
        raise ToMeValueError(
            f"start={start:g} must be below end={end:g}; both are fractions of the denoising"
        )
    if not any(values[name] for name in layers):
        raise ToMeValueError(
            "merge_attn, merge_crossattn and merge_mlp are all False, so nothing would merge; "
            "set at least merge_attn=True, or call remove_tome() to go back to the plain model"
        )
