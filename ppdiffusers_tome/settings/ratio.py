"""The ratio: one number, a ramp over the denoising, or either by level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from os import PathLike
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.bounds import check_type, to_python
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

# A number, or a ramp of several, evenly spaced over the denoising and interpolated linearly; of all levels or by level.
Ratio = float | Sequence[float] | Mapping[int, float | Sequence[float]]
LEVELS = (1, 2, 4, 8)
_LEVELS_BY_NAME = {str(level): level for level in LEVELS}  # the keys of a JSON object are strings
_FRACTION = f"a number, the fraction of tokens to merge, such as 0.5, or the name of a preset ({', '.join(PRESETS)})"


class ByLevel(Mapping[int, Any]):
    """Immutable, hashable ratios by level, finest first; a ramp is a tuple.

    Example:
        >>> ByLevel({2: 0.25, 1: 0.5})
        {1: 0.5, 2: 0.25}
    """

    def __init__(self, ratios: Mapping[int, Any]) -> None:
        self._ratios = dict(sorted(ratios.items()))

    def __getitem__(self, level: int) -> Any:
        return self._ratios[level]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ratios)

    def __len__(self) -> int:
        return len(self._ratios)

    def __hash__(self) -> int:
        return hash(tuple(self._ratios.items()))

    def __repr__(self) -> str:
        return repr(self._ratios)


def check_ratio(ratio: Any, settings: Mapping[str, Any]) -> float | tuple[float, ...] | ByLevel:
    """Check a ratio against the other settings, and convert it to Python's own types.

    Raises:
        ToMeTypeError: it is no number, ramp, or mapping of either by level.
        ToMeValueError: it names another level, or is outside of what the stride and the method allow.
    """
    if not isinstance(ratio, Mapping):
        return _check_ramp("ratio", ratio, settings)
    text = shorten_repr(dict(ratio))
    ramps: dict[int, float | tuple[float, ...]] = {}
    for level, ramp in ((to_python(level), to_python(ramp)) for level, ramp in ratio.items()):
        number = _LEVELS_BY_NAME.get(level if isinstance(level, str) else shorten_repr(level))
        if number is None:
            raise ToMeValueError(
                f"ratio={text} has level {shorten_repr(level)}; levels are 1, 2, 4 and 8, as in {{1: 0.5, 2: 0.25}}"
            )
        if number in ramps:  # 1, "1" and a tensor that holds 1 are three keys
            raise ToMeValueError(f"ratio={text} names level {number} twice; give each level once")
        ramps[number] = _check_ramp(f"ratio[{number}]", ramp, settings)
    if not ramps:
        raise ToMeValueError("ratio={} names no level; give one such as {1: 0.5}")
    return ByLevel(ramps)


def _check_ramp(name: str, ramp: Any, settings: Mapping[str, Any]) -> float | tuple[float, ...]:
    if isinstance(ramp, str | bytes) or not isinstance(ramp, Sequence):
        return _check_fraction(name, ramp, settings)
    if len(ramp) < 2:
        raise ToMeValueError(f"{name}={shorten_repr(ramp)} must be a number, or a ramp of two or more: (0.7, 0.3)")
    return tuple(_check_fraction(f"{name}[{i}]", to_python(ratio), settings) for i, ratio in enumerate(ramp))


def _check_fraction(name: str, ratio: Any, settings: Mapping[str, Any]) -> float:
    check_type(ratio, Real, _FRACTION, f"{name}=", _suggest_config(ratio))
    stride = [settings[name] for name in ("sx", "sy", "st")]
    limit = 1 - 1 / math.prod(stride)  # all tokens but the destinations
    # Where every query stays, the destinations alone may remain as keys.
    may_reach_limit = METHODS[settings["method"]].keeps_queries
    if may_reach_limit and 0 <= ratio <= 1 and f"{float(ratio):.4g}" == f"{limit:.4g}":
        return limit  # given as a summary shows it, 0.8889 for 8 / 9
    if 0 <= ratio < limit:
        return float(ratio)
    highest = f"{'at most' if may_reach_limit else 'below'} {math.floor(limit * 1e6) / 1e6:g}"  # rounded down
    shape = "x".join(map(shorten_repr, stride if settings["st"] > 1 else stride[:2]))
    remedy = "raise the ratio to 0 or more" if ratio < 0 else "lower the ratio or enlarge the stride"
    remedy = "give a number such as 0.5" if ratio != ratio else remedy  # NaN
    raise ToMeValueError(
        f"{name}={shorten_repr(ratio)} must be at least 0 and {highest} for a {shape} stride; {remedy}",
        settings=("ratio", "sx", "sy", "st", "method") if ratio == limit else ("ratio", "sx", "sy", "st"),
    )


def _suggest_config(ratio: Any) -> str:
    """Suggest the preset or file that a ratio may stand for."""
    if isinstance(ratio, str) and ratio in PRESETS:
        return f"; call ToMeConfig.preset({ratio!r}), or apply_tome({ratio!r})"
    if isinstance(ratio, str | PathLike) and str(ratio).endswith(".json"):
        return f"; pass a file of settings as config={str(ratio)!r}"
    return did_you_mean(ratio, PRESETS) if isinstance(ratio, str) else ""
