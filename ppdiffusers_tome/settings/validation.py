"""Validation of ``ToMeConfig``: types, ranges, and settings that conflict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import LEVELS, ByLevel, check_type, describe_type, to_python, truncated_repr

_FLAGS = ("use_rand", "merge_attn", "merge_crossattn", "merge_mlp", "reuse_blocks")
# Lowest and highest value, what is counted, and the accepted values in words.
_INTEGERS = {
    "sx": (1, math.inf, "a whole number of tokens, ", "1 or more, such as 2"),
    "sy": (1, math.inf, "a whole number of tokens, ", "1 or more, such as 2"),
    "st": (1, math.inf, "a whole number of frames, ", "1 or more, such as 2"),
    "max_downsample": (1, 8, "", "1, 2, 4, 8 or None (the finest level of the model)"),
    "seed": (0, 2**63 - 1, "a whole number ", "from 0 to 2**63 - 1"),
    "tile": (1, math.inf, "a whole number of tokens, ", "such as 16, or None (compare all with all)"),
    "reuse_steps": (1, math.inf, "a whole number of denoising steps, ", "1 (no reuse) or more, such as 4"),
}
_OPTIONAL = ("max_downsample", "tile", "min_similarity")


def validate(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Check all settings and convert them to Python's own types.

    Args:
        settings: every setting by name.
        defaults: the default of every setting.

    Raises:
        ToMeTypeError, ToMeValueError: as for ``ToMeConfig``.
    """
    values = {name: to_python(value) for name, value in settings.items()}
    for name in _FLAGS:
        if not isinstance(values[name], bool):
            raise ToMeTypeError(f"{name}={truncated_repr(values[name])} must be True or False")
    if not isinstance(values["proportional"], bool | None):
        raise ToMeTypeError(
            f"proportional={truncated_repr(values['proportional'])} must be True, False or None (as the method does)"
        )
    for name in _INTEGERS:
        if values[name] is not None or name not in _OPTIONAL:
            values[name] = _validate_integer(name, values[name])
    for name in ("start", "end", "min_similarity"):
        if values[name] is not None or name not in _OPTIONAL:
            check_type(values[name], Real, "a number", f"{name}=")
            values[name] = _to_float(values[name])
    values["method"] = _validate_method(values["method"])
    _check_ranges(values)
    _check_layers(values)
    values["ratio"] = _validate_ratio(values["ratio"], values)
    for name, reason in METHODS[values["method"]].unsupported_settings.items():
        if values[name] != defaults[name]:
            raise ToMeValueError(
                f"{name}={truncated_repr(values[name])} has no effect with method={values['method']!r}, as {reason}; "
                f"leave it at {defaults[name]!r}, or choose another method",
                settings=(name, "method"),
            )
    return values


def _validate_integer(name: str, value: Any) -> int:
    lowest, highest, unit, accepted = _INTEGERS[name]
    check_type(value, Integral, unit + accepted, f"{name}=")
    if not lowest <= value <= highest or (name == "max_downsample" and value not in LEVELS):
        raise ToMeValueError(f"{name}={truncated_repr(value)} must be {accepted}")
    return int(value)


def _validate_method(method: Any) -> str:
    if not isinstance(method, str) or method not in METHODS:
        suggestion = did_you_mean(method, METHODS) if isinstance(method, str) else ""
        raise ToMeValueError(
            f"method={truncated_repr(method)} must be one of {', '.join(map(repr, METHODS))}{suggestion}"
        )
    return str(method)  # a numpy string is a str, too


def _validate_ratio(ratio: Any, values: Mapping[str, Any]) -> float | tuple[float, ...] | ByLevel:
    """Check a ratio, a ramp, or a mapping of either by level."""
    if not isinstance(ratio, Mapping):
        return _validate_ramp("ratio", ratio, values)
    text = truncated_repr(dict(ratio))
    if values["max_downsample"] is not None:
        raise ToMeValueError(
            f"ratio={text} names its levels, so max_downsample={values['max_downsample']} has no effect; leave it at "
            "None",
            settings=("ratio", "max_downsample"),
        )
    ramps: dict[int, float | tuple[float, ...]] = {}
    for level, ramp in ((to_python(level), to_python(ramp)) for level, ramp in ratio.items()):
        if isinstance(level, bool) or not isinstance(level, Integral) or level not in LEVELS:
            raise ToMeValueError(
                f"ratio={text} has level {truncated_repr(level)}; levels are 1, 2, 4 and 8, as in {{1: 0.5, 2: 0.25}}"
            )
        if int(level) in ramps:  # 1 and a tensor that holds 1 are two keys
            raise ToMeValueError(f"ratio={text} names level {level} twice; give each level once")
        ramps[int(level)] = _validate_ramp(f"ratio[{level}]", ramp, values)
    if not ramps:
        raise ToMeValueError("ratio={} names no level; give one such as {1: 0.5}")
    return ByLevel(ramps)


def _validate_ramp(name: str, ramp: Any, values: Mapping[str, Any]) -> float | tuple[float, ...]:
    if not isinstance(ramp, Sequence) or isinstance(ramp, str | bytes):
        return _validate_fraction(name, ramp, values)
    if len(ramp) < 2:
        raise ToMeValueError(f"{name}={truncated_repr(ramp)} must be a number, or a ramp of two or more: (0.7, 0.3)")
    return tuple(_validate_fraction(f"{name}[{i}]", to_python(ratio), values) for i, ratio in enumerate(ramp))


def _validate_fraction(name: str, ratio: Any, values: Mapping[str, Any]) -> float:
    if isinstance(ratio, str) and ratio == "auto":
        raise ToMeValueError(
            f"{name}='auto' is not a setting: apply_tome does not generate images to try settings. Call tune, as in "
            "found = ppdiffusers_tome.tune(pipe, call={'prompt': 'a cat'}, psnr=30), and then "
            "pipe.apply_tome(found.config)"
        )
    if isinstance(ratio, bool) or not isinstance(ratio, Real):
        suggestion = did_you_mean(ratio, presets()) if isinstance(ratio, str) else ""
        raise ToMeTypeError(
            f"{name}={truncated_repr(ratio)} must be a number, the fraction of tokens to merge, such as 0.5, or the "
            f"name of a preset ({', '.join(presets())}); got {describe_type(ratio)}{suggestion}"
        )
    stride = [values["sx"], values["sy"], values["st"]]
    limit, number = 1 - 1 / math.prod(stride), _to_float(ratio)
    # Where every query stays, the destinations alone may remain as keys.
    may_reach_limit = METHODS[values["method"]].keeps_queries
    if 0 <= ratio < limit or (ratio == limit and may_reach_limit):
        return number
    remedy = "raise the ratio to 0 or more" if ratio < 0 else "lower the ratio or enlarge the stride"
    remedy = remedy if math.isfinite(number) else "give a finite number such as 0.5"
    highest = f"{'at most' if may_reach_limit else 'below'} {math.floor(limit * 1e6) / 1e6:g}"  # rounded down
    raise ToMeValueError(
        f"{name}={truncated_repr(ratio)} must be at least 0 and {highest} for a "
        f"{_format_stride(*stride)} stride; {remedy}",
        settings=("ratio", "sx", "sy", "st", "method") if ratio == limit else ("ratio", "sx", "sy", "st"),
    )


def _check_ranges(values: Mapping[str, Any]) -> None:
    tile, sx, sy, start, end = (values[name] for name in ("tile", "sx", "sy", "start", "end"))
    if sx * sy * values["st"] == 1:
        raise ToMeValueError(
            "sx=1 and sy=1 make every token a destination, so nothing could merge; use a stride such as sx=2, sy=2",
            settings=("sx", "sy", "st"),
        )
    if tile is not None and tile < max(sx, sy):
        raise ToMeValueError(
            f"tile={truncated_repr(tile)} must be at least {truncated_repr(max(sx, sy))} for a "
            f"{_format_stride(sx, sy)} stride, so that a tile holds a destination; 16 is a good size, and None "
            "compares all with all",
            settings=("tile", "sx", "sy"),
        )
    if not 0 <= start < end <= 1:
        raise ToMeValueError(
            f"start={start:g} and end={end:g} must be fractions of the denoising, 0 <= start < end <= 1",
            settings=("start", "end"),
        )
    if values["min_similarity"] is not None and not -1 <= values["min_similarity"] <= 1:
        raise ToMeValueError(f"min_similarity={values['min_similarity']:g} must be a cosine, from -1 to 1, such as 0.9")


def _check_layers(values: Mapping[str, Any]) -> None:
    """Check that the layers to merge around fit the other settings."""
    layers = ("merge_attn", "merge_crossattn", "merge_mlp")
    if not any(values[name] for name in layers):
        raise ToMeValueError(
            "merge_attn, merge_crossattn and merge_mlp are all False, so nothing would merge; "
            "set at least merge_attn=True, or call remove_tome() to go back to the plain model",
            settings=layers,
        )
    if values["proportional"] and not values["merge_attn"]:
        raise ToMeValueError(
            "proportional=True has no effect with merge_attn=False, as it is for attention on merged tokens; leave it "
            "at None, or set merge_attn=True",
            settings=("proportional", "merge_attn"),
        )


def _format_stride(sx: int, sy: int, st: int = 1) -> str:
    """Write ``2x2``, or ``2x2x2`` with a stride over frames."""
    return "x".join(map(truncated_repr, (sx, sy) if st == 1 else (sx, sy, st)))


def _to_float(number: Any) -> float:
    """Convert to a float; integers too large for one become infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
