"""The one clock: seconds between two moments at which the device had done all that it was given."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class DeviceClock:
    """Runs from the moment it is made."""

    def __init__(self) -> None:
        synchronize()
        self._began = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the clock was made, or since the lap before."""
        synchronize()
        began, self._began = self._began, time.perf_counter()
        return self._began - began


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


def synchronize() -> None:
    """Wait until the device has done what it was given."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.synchronize()
