"""Settings of ``ToMeConfig`` checked, alone and together. Knows no Paddle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import LEVELS, ByLevel, describe_type, to_python, truncated_repr

_FLAGS = ("use_rand", "merge_attn", "merge_crossattn", "merge_mlp", "reuse_blocks")
_INTEGERS = ("sx", "sy", "st", "seed", "reuse_steps", "max_downsample", "tile")


def validate(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, as Python's own values.

    Args:
        given: every setting by name.
        defaults: of every setting.

    Raises:
        ToMeTypeError, ToMeValueError: as for ``ToMeConfig``.
    """
    values = {name: to_python(value) for name, value in given.items()}
    for name in _FLAGS:
        if not isinstance(values[name], bool):
            raise ToMeTypeError(f"{name}={truncated_repr(values[name])} must be True or False")
    if values["proportional"] is not None and not isinstance(values["proportional"], bool):
        raise ToMeTypeError(
            f"proportional={truncated_repr(values['proportional'])} must be True, False or None (as the method does)"
        )
    _check_stride(values)
    known = METHODS
    if not isinstance(values["method"], str) or values["method"] not in known:
        meant = did_you_mean(values["method"], known) if isinstance(values["method"], str) else ""
        raise ToMeValueError(f"method={truncated_repr(values['method'])} must be one of {', '.join(map(repr, known))}{meant}")
    values["method"] = str(values["method"])  # Python's own, whatever else counts as text
    values["ratio"] = _checked_ratio(values)
    _check_max_downsample(values["max_downsample"])
    if not (values["merge_attn"] or values["merge_crossattn"] or values["merge_mlp"]):
        raise ToMeValueError(
            "merge_attn, merge_crossattn and merge_mlp are all False, so nothing would merge; "
            "set at least merge_attn=True, or call remove_tome() to go back to the plain model"
        )
    if values["proportional"] and not values["merge_attn"]:
        raise ToMeValueError(
            "proportional=True has no effect with merge_attn=False, as it is for attention on merged tokens; leave it "
            "at None, or set merge_attn=True"
        )
    _require_integer("seed", values["seed"], "a whole number from 0 to 2**63 - 1")
    if not 0 <= values["seed"] < 2**63:
        raise ToMeValueError(f"seed={truncated_repr(values['seed'])} must be from 0 to 2**63 - 1")
    _check_tile(values)
    _require_integer("reuse_steps", values["reuse_steps"], "a whole number of denoising steps, 1 or more")
    if values["reuse_steps"] < 1:
        raise ToMeValueError(f"reuse_steps={truncated_repr(values['reuse_steps'])} must be 1 (no reuse) or more, such as 4")
    values |= _checked_schedule(values)
    _check_pointless(values, defaults)
    return values | {name: int(values[name]) for name in _INTEGERS if values[name] is not None}


def _check_stride(values: Mapping[str, Any]) -> None:
    for name, of, usual in (("sx", "tokens", 2), ("sy", "tokens", 2), ("st", "frames", 1)):
        _require_integer(name, values[name], f"a whole number of {of}, 1 or more, such as 2")
        if values[name] < 1:
            raise ToMeValueError(f"{name}={truncated_repr(values[name])} must be 1 or more; the usual stride is {usual}")
    if values["sx"] * values["sy"] * values["st"] == 1:
        raise ToMeValueError(
            "sx=1 and sy=1 make every token a destination, so nothing could merge; use a stride such as sx=2, sy=2"
        )


def _check_max_downsample(level: Any) -> None:
    if level is None:
        return
    _require_integer("max_downsample", level, "1, 2, 4, 8 or None")
    if level not in LEVELS:
        raise ToMeValueError(
            f"max_downsample={truncated_repr(level)} must be 1, 2, 4, 8 or None (the finest level of the model)"
        )


def _check_tile(values: Mapping[str, Any]) -> None:
    tile, sx, sy = values["tile"], values["sx"], values["sy"]
    if tile is None:
        return
    _require_integer("tile", tile, "a whole number of tokens, such as 16, or None (compare all with all)")
    if tile < max(sx, sy):
        raise ToMeValueError(
            f"tile={truncated_repr(tile)} must be at least {truncated_repr(max(sx, sy))} for a {truncated_repr(sx)}x{truncated_repr(sy)} stride, so that a "
            "tile holds a destination; 16 is a good size, and None compares all with all"
        )


def _checked_schedule(values: Mapping[str, Any]) -> dict[str, float | None]:
    """``start``, ``end`` and ``min_similarity``."""
    numbers: dict[str, Any] = {}
    for name in ("start", "end", "min_similarity"):
        value = values[name]
        if value is None and name == "min_similarity":
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ToMeTypeError(f"{name}={truncated_repr(value)} must be a number; got {describe_type(value)}")
        numbers[name] = _float(value)
    if not 0 <= numbers["start"] < numbers["end"] <= 1:
        raise ToMeValueError(
            f"start={numbers['start']:g} and end={numbers['end']:g} must be shares of the denoising, "
            "0 <= start < end <= 1"
        )
    least = numbers.get("min_similarity")
    if least is not None and not -1 <= least <= 1:
        raise ToMeValueError(f"min_similarity={least:g} must be a cosine, from -1 to 1, such as 0.9")
    return numbers


def _check_pointless(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    for name, reason in METHODS[values["method"]].unsupported_settings.items():
        if values[name] != defaults[name]:
            raise ToMeValueError(
                f"{name}={truncated_repr(values[name])} has no effect with method={values['method']!r}, as {reason}; leave it "
                f"at {defaults[name]!r}, or choose another method"
            )


def _checked_ratio(values: Mapping[str, Any]) -> float | tuple[float, ...] | ByLevel:
    """The ratio in plain Python numbers."""
    ratio = values["ratio"]
    if not isinstance(ratio, Mapping):
        return _checked_ramp("ratio", ratio, values)
    given = truncated_repr(dict(ratio))
    if values["max_downsample"] is not None:
        raise ToMeValueError(
            f"ratio={given} names its levels, so max_downsample={truncated_repr(values['max_downsample'])} has no effect; leave "
            "it at None"
        )
    ramps: dict[int, float | tuple[float, ...]] = {}
    for level, ramp in ((to_python(level), to_python(ramp)) for level, ramp in ratio.items()):
        if isinstance(level, bool) or not isinstance(level, Integral) or level not in LEVELS:
            raise ToMeValueError(
                f"ratio={given} has level {truncated_repr(level)}; levels are 1, 2, 4 and 8, as in {{1: 0.5, 2: 0.25}}"
            )
        if int(level) in ramps:  # as 1 and a tensor that holds 1 are two keys
            raise ToMeValueError(f"ratio={given} names level {level} twice; give each level once")
        ramps[int(level)] = _checked_ramp(f"ratio[{level}]", ramp, values)
    if not ramps:
        raise ToMeValueError("ratio={} names no level; give one such as {1: 0.5}")
    return ByLevel(ramps)


def _checked_ramp(name: str, ramp: Any, values: Mapping[str, Any]) -> float | tuple[float, ...]:
    """A ratio, or several."""
    if isinstance(ramp, Sequence) and not isinstance(ramp, str | bytes):
        if len(ramp) < 2:
            raise ToMeValueError(f"{name}={truncated_repr(ramp)} must be a number, or a ramp of two or more: (0.7, 0.3)")
        return tuple(_checked_number(f"{name}[{place}]", to_python(one), values) for place, one in enumerate(ramp))
    return _checked_number(name, ramp, values)


def _checked_number(name: str, ratio: Any, values: Mapping[str, Any]) -> float:
    if isinstance(ratio, bool) or not isinstance(ratio, Real):
        raise ToMeTypeError(
            f"{name}={truncated_repr(ratio)} must be a number, the share of tokens to merge, such as 0.5, or the name of a "
            f"preset ({', '.join(presets())}); got {describe_type(ratio)}"
            f"{did_you_mean(ratio, presets()) if isinstance(ratio, str) else ''}"
        )
    limit = 1 - 1 / (values["sx"] * values["sy"] * values["st"])
    # Every destination stays; of keys there may be the destinations alone.
    keeps_queries, number = METHODS[values["method"]].keeps_queries, _float(ratio)
    if not math.isfinite(number) or not (0 <= ratio < limit or (ratio == limit and keeps_queries)):
        remedy = "raise the ratio to 0 or more" if ratio < 0 else "lower the ratio or enlarge the stride"
        remedy = remedy if math.isfinite(number) else "give a finite number such as 0.5"
        most = f"{'at most' if keeps_queries else 'below'} {math.floor(limit * 1e6) / 1e6:g}"  # never more than it is
        raise ToMeValueError(
            f"{name}={truncated_repr(ratio)} must be at least 0 and {most} for a {_stride(values)} stride; {remedy}"
        )
    return number


def _stride(values: Mapping[str, Any]) -> str:
    """``2x2``, and with the frames ``2x2x2``."""
    names = ("sx", "sy", "st") if values["st"] > 1 else ("sx", "sy")
    return "x".join(truncated_repr(values[name]) for name in names)


def _require_integer(name: str, value: Any, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ToMeTypeError(f"{name}={truncated_repr(value)} must be {wanted}; got {describe_type(value)}")


def _float(number: Any) -> float:
    """A number as a float; a whole one too large for that is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
