"""Seconds of work, and turns that share what slows the machine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ppdiffusers_tome.tuning.measurement import DeviceClock

T = TypeVar("T")


def measure_seconds(work: Callable[[], Any]) -> float:
    """Run a piece of work and return its seconds."""
    with pause_garbage_collection():
        clock = DeviceClock()
        work()
        return clock.lap()


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
