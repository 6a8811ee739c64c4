"""Seconds, peak memory and random state. Paddle is imported by measuring."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def read_clock() -> float:
    """Wait until the device is idle, and read a clock in seconds."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.synchronize()
    return time.perf_counter()


class Meter:
    """A clock and a memory counter that start when they are created.

    Memory is that of Paddle's tensors. What earlier work left to the garbage collector is collected before, as it would
    count, or be collected meanwhile.
    """

    def __init__(self) -> None:
        gc.collect()
        if measures_memory():
            _call_counter("reset_peak_value")
        self._start = read_clock()

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return read_clock() - self._start

    def peak_bytes(self) -> int | None:
        """Return the most memory since the start, with weights, if measured."""
        return _call_counter("peak_value") if measures_memory() else None


def measures_memory() -> bool:
    """Return whether Paddle can reset a peak, as Paddle 2.6 cannot."""
    from paddle.base import core

    return hasattr(core, "host_memory_stat_reset_peak_value")


def explain_peak() -> str:
    """Explain the meaning of ``peak_bytes`` on this device."""
    import paddle

    return "memory of Paddle's tensors" + (" on the GPU" if paddle.get_device().startswith("gpu") else "")


def find_highest_peak(peaks: Iterable[int | None]) -> int | None:
    """Return the highest peak; None if one was not measured."""
    peaks = list(peaks)
    return None if None in peaks else max(peaks)  # type: ignore[type-var]


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore the global generators of Paddle, numpy and ppdiffusers afterwards.

    ppdiffusers keeps those of ``pipe(generator=name)`` in ``paddle.Generator()``, where PyTorch has a class; they
    advance from image to image.
    """
    import numpy as np
    import paddle

    named = getattr(paddle.Generator(), "states_", {}) if hasattr(paddle, "Generator") else {}
    cpu = paddle.base.core.default_cpu_generator()  # which a seed is for, too, on every device
    states, cpu_state, numpy_state = paddle.get_rng_state(), cpu.get_state(), np.random.get_state()
    named_states = dict(named)
    try:
        yield
    finally:
        cpu.set_state(cpu_state)
        paddle.set_rng_state(states)
        np.random.set_state(numpy_state)
        named.update(named_states)


def _call_counter(name: str) -> int:
    """Call a function of Paddle's counter of tensors on the device."""
    import paddle
    from paddle.base import core

    device, _, index = paddle.get_device().partition(":")
    kind, number = ("device", int(index or 0)) if device == "gpu" else ("host", 0)
    return getattr(core, f"{kind}_memory_stat_{name}")("Allocated", number)
