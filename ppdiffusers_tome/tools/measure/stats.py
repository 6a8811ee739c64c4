"""Medians of measurements, and how certain they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEVEL = 0.95
RESAMPLES = 10_000
# The lowest and the highest of five values hold the median of their population in 93.75% of all cases, 1 - 2 * 0.5**5,
# so no interval of five values reaches 95%.
MIN_VALUES = 6
METHOD = f"{LEVEL:.0%} percentile bootstrap over the images ({RESAMPLES:,} resamples, seed 0)"
_INFINITE = 1e12  # stands for infinity in the bootstrap; medians halfway to it are infinite too


@dataclass(frozen=True)
class Median:
    """A median over images, and the least and highest value.

    Values may be infinite, as the PSNR of identical images.
    """

    median: float
    low: float
    high: float
    interval: tuple[float, float] | None = None  # of the median, with a confidence of LEVEL, from MIN_VALUES on

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Median:
        """Summarize one value or more; equal values have an equal interval."""
        finite = [min(max(value, -_INFINITE), _INFINITE) for value in values]
        return cls(_restore(statistics.median(finite)), min(values), max(values), _bootstrap(finite))

    def format(self, format_value: Callable[[float], str]) -> str:
        """Return ``30.1 [28.9, 31.4]``, or one number for equal ends."""
        ends = [] if self.interval is None else [format_value(end) for end in self.interval]
        value = format_value(self.median)
        return f"{value} [{ends[0]}, {ends[1]}]" if len(set(ends)) == 2 else value


def _bootstrap(values: Sequence[float]) -> tuple[float, float] | None:
    import numpy as np
    from scipy.stats import bootstrap

    if len(values) < MIN_VALUES:
        return None
    if min(values) == max(values):
        return _restore(values[0]), _restore(values[0])
    interval = bootstrap(
        (np.asarray(values),), np.median, confidence_level=LEVEL, n_resamples=RESAMPLES, method="percentile",
        batch=1_000_000 // len(values) + 1, random_state=0,
    ).confidence_interval  # fmt: skip
    return _restore(float(interval.low)), _restore(float(interval.high))


def _restore(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) > _INFINITE / 4 else value
