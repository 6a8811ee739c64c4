"""Medians of measurements, and how certain they are."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEVEL = 0.95
RESAMPLES = 10_000
# The lowest and the highest of five values hold the median of their population in 93.75% of all cases, 1 - 2 * 0.5**5,
# so no interval of five values reaches 95%.
MIN_VALUES = 6
METHOD = f"{LEVEL:.0%} percentile bootstrap over the images ({RESAMPLES:,} resamples, seed 0)"


@dataclass(frozen=True)
class Median:
    """A median over images, and the least and greatest value.

    Values may be infinite, as the PSNR of identical images.
    """

    median: float
    least: float
    greatest: float
    interval: tuple[float, float] | None = None  # of the median, with a confidence of LEVEL, from MIN_VALUES on

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Median":
        """Summarize one value or more; equal values have an equal interval."""
        return cls(statistics.median(values), min(values), max(values), _bootstrap(values))

    def format(self, format_value: Callable[[float], str]) -> str:
        """Return ``30.1 [28.9, 31.4]``, or one number for equal ends."""
        ends = [] if self.interval is None else [format_value(end) for end in self.interval]
        value = format_value(self.median)
        return f"{value} [{ends[0]}, {ends[1]}]" if len(set(ends)) == 2 else value


def _bootstrap(values: Sequence[float]) -> tuple[float, float] | None:
    import numpy as np

    if len(values) < MIN_VALUES:
        return None
    medians = np.median(np.random.default_rng(0).choice(values, (RESAMPLES, len(values))), axis=1)
    # The nearest of them, as some may be infinite.
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return float(low), float(high)
