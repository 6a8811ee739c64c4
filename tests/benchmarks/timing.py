"""Seconds of work, their spread, and turns that share what slows the machine."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ppdiffusers_tome.tuning.measurement import read_clock

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of a value."""

    median: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Spread:
        """Summarize one value or more."""
        return cls(statistics.median(values), min(values), max(values))

    def format(self, format_value: Callable[[float], str]) -> str:
        """Return ``2.00x (1.90x to 2.20x)``."""
        return f"{format_value(self.median)} ({format_value(self.low)} to {format_value(self.high)})"


def measure_seconds(work: Callable[[], Any]) -> float:
    """Run a piece of work and return its seconds."""
    with pause_garbage_collection():
        start = read_clock()
        work()
        return read_clock() - start


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector off within this context."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rotate(variants: Sequence[T], number: int) -> list[T]:
    """Return the order of a round: another variant begins each round."""
    first = number % len(variants) if variants else 0
    return [*variants[first:], *variants[:first]]
