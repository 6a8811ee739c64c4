"""A value of several runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of a value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def of_quotients(cls, values: Sequence[float], others: Sequence[float]) -> Spread:
        """Of values divided each by its other: of one round, and so of the same minutes."""
        return cls.of([value / other for value, other in zip(values, others, strict=True)])

    def format(self, one: Callable[[float], str]) -> str:
        """``2.00x (1.90x to 2.20x)``, each of the three written by ``one``."""
        return f"{one(self.median)} ({one(self.low)} to {one(self.high)})"
