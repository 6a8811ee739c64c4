"""Validation of ``ToMeConfig``: types, ranges, and settings that conflict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field
from numbers import Real
from os import PathLike
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.bounds import check_type, to_python
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

_FRACTION = "a number, the fraction of tokens to merge, such as 0.5"


def check_settings(settings: Sequence[Field[Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check all settings and return them in Python's own types.

    ``settings`` are the fields of ``ToMeConfig``, all but the ratio with bounds; ``values`` has a value for each.
    """
    values = {name: to_python(value) for name, value in values.items()}
    for each in settings:
        if "bounds" in each.metadata:
            values[each.name] = each.metadata["bounds"].check(each.name, values[each.name])
    _check_conflicts(values)
    unused = [("method", name, reason) for name, reason in METHODS[values["method"]].unsupported_settings.items()]
    if not values["use_rand"]:
        unused.append(("use_rand", "seed", "nothing is chosen at random"))
    defaults = {each.name: each.default for each in settings}
    for other, name, reason in unused:
        if values[name] != defaults[name]:
            raise ToMeValueError(
                f"{name}={values[name]!r} has no effect with {other}={values[other]!r}, as {reason}; omit it, or "
                f"change {other}"
            )
    values["ratio"] = _check_ratio(values["ratio"], values)
    return values


def _check_conflicts(values: Mapping[str, Any]) -> None:
    """Check that settings other than the ratio fit each other."""
    tile, sx, sy, start, end = (values[name] for name in ("tile", "sx", "sy", "start", "end"))
    if sx * sy * values["st"] == 1:
        raise ToMeValueError(
            "sx=1 and sy=1 make every token a destination, so nothing could merge; use a stride such as sx=2, sy=2"
        )
    if tile is not None and tile < max(sx, sy):
        raise ToMeValueError(
            f"tile={tile} must be at least {max(sx, sy)} for a {sx}x{sy} stride, so that a tile holds a destination; "
            "16 is a good size, and None compares all with all"
        )
    if not start < end:
        raise ToMeValueError(f"start={start:g} must be below end={end:g}; both are fractions of the denoising")
    if not (values["merge_attn"] or values["merge_crossattn"] or values["merge_mlp"]):
        raise ToMeValueError(
            "merge_attn, merge_crossattn and merge_mlp are all False, so nothing would merge; "
            "set at least merge_attn=True, or call remove_tome() to go back to the plain model"
        )


def _check_ratio(ratio: Any, settings: Mapping[str, Any]) -> float | tuple[float, ...]:
    if isinstance(ratio, str | bytes) or not isinstance(ratio, Sequence):
        return _check_fraction("ratio", ratio, settings)
    if len(ratio) < 2:
        raise ToMeValueError(f"ratio={shorten_repr(ratio)} must be a number, or a ramp of two or more: (0.7, 0.3)")
    return tuple(_check_fraction(f"ratio[{i}]", to_python(each), settings) for i, each in enumerate(ratio))


def _check_fraction(name: str, ratio: Any, settings: Mapping[str, Any]) -> float:
    check_type(ratio, Real, _FRACTION, f"{name}=", _suggest_config(ratio))
    stride = [settings[name] for name in ("sx", "sy", "st")]
    limit = 1 - 1 / math.prod(stride)  # all tokens but the destinations
    # Where every query stays, the destinations alone may remain as keys.
    may_reach_limit = METHODS[settings["method"]].keeps_queries
    if may_reach_limit and abs(ratio - limit) < 5e-5:
        return limit  # given with the four digits of a summary, 0.8889 for 8 / 9
    if 0 <= ratio < limit:
        return float(ratio)
    highest = f"{'at most' if may_reach_limit else 'below'} {math.floor(limit * 1e6) / 1e6:g}"  # rounded down
    shape = "x".join(map(str, stride if settings["st"] > 1 else stride[:2]))
    remedy = "raise the ratio to 0 or more" if ratio < 0 else "lower the ratio"
    if 0 < ratio < 1:
        remedy += " or enlarge the stride"
    raise ToMeValueError(
        f"{name}={shorten_repr(ratio)} must be at least 0 and {highest} for a {shape} stride; {remedy}"
    )


def _suggest_config(ratio: Any) -> str:
    """Suggest the preset or file that a ratio may stand for."""
    if isinstance(ratio, str) and ratio in PRESETS:
        return f"; call ToMeConfig.preset({ratio!r}), or apply_tome({ratio!r})"
    if isinstance(ratio, str | PathLike) and str(ratio).endswith(".json"):
        return f"; pass a file of settings as config={str(ratio)!r}"
    return f"; the presets are {', '.join(PRESETS)}{did_you_mean(ratio, PRESETS)}" if isinstance(ratio, str) else ""
