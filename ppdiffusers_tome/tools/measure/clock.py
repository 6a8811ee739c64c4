"""The one clock: seconds between two moments at which the device had done all that it was given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ppdiffusers_tome.tuning.measurement import DeviceClock as DeviceClock


def seconds_of(work: Callable[[], Any]) -> float:
    """How long a piece of work takes."""
    with garbage_kept():
        clock = DeviceClock()
        work()
        return clock.lap()


@contextmanager
def garbage_kept() -> Iterator[None]:
    """For as long as this lasts, Python's garbage collector does not step in."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
