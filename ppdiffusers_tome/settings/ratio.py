"""The ratio: one number, or a ramp over the denoising."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from os import PathLike
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.bounds import check_type, to_python
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

# A number, or a ramp of several, evenly spaced over the denoising and interpolated linearly.
Ratio = float | Sequence[float]
LEVELS = (1, 2, 4, 8)
_FRACTION = f"a number, the fraction of tokens to merge, such as 0.5, or the name of a preset ({', '.join(PRESETS)})"


def check_ratio(ratio: Any, settings: Mapping[str, Any]) -> float | tuple[float, ...]:
    """Check a ratio against the other settings, in Python's own types.

    Raises:
        ToMeTypeError: it is no number or ramp.
        ToMeValueError: it is outside of what the stride and the method allow.
    """
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
    if may_reach_limit and 0 <= ratio <= 1 and f"{float(ratio):.4g}" == f"{limit:.4g}":
        return limit  # given as a summary shows it, 0.8889 for 8 / 9
    if 0 <= ratio < limit:
        return float(ratio)
    highest = f"{'at most' if may_reach_limit else 'below'} {math.floor(limit * 1e6) / 1e6:g}"  # rounded down
    shape = "x".join(map(shorten_repr, stride if settings["st"] > 1 else stride[:2]))
    remedy = "raise the ratio to 0 or more" if ratio < 0 else "lower the ratio or enlarge the stride"
    remedy = "give a number such as 0.5" if ratio != ratio else remedy  # NaN
    raise ToMeValueError(
        f"{name}={shorten_repr(ratio)} must be at least 0 and {highest} for a {shape} stride; {remedy}"
    )


def _suggest_config(ratio: Any) -> str:
    """Suggest the preset or file that a ratio may stand for."""
    if isinstance(ratio, str) and ratio in PRESETS:
        return f"; call ToMeConfig.preset({ratio!r}), or apply_tome({ratio!r})"
    if isinstance(ratio, str | PathLike) and str(ratio).endswith(".json"):
        return f"; pass a file of settings as config={str(ratio)!r}"
    return did_you_mean(ratio, PRESETS) if isinstance(ratio, str) else ""
