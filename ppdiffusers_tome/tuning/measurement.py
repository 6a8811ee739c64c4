"""Seconds, peak memory and random state. Paddle is imported by measuring."""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

_STATUS, _CLEAR_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def read_clock() -> float:
    """Wait until the device is idle, and read a clock in seconds."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.synchronize()
    return time.perf_counter()


class Meter:
    """A clock and a memory counter that start when they are created.

    Memory is that of Paddle's tensors; that of the process (Linux) on a CPU with Paddle 2.6, which cannot reset a peak.
    What earlier work left to the garbage collector is collected before, as it would count, or be collected meanwhile.
    """

    def __init__(self) -> None:
        gc.collect()
        core, kind, index = _find_device()
        reset = getattr(core, f"{kind}_memory_stat_reset_peak_value", None)
        read = getattr(core, f"{kind}_memory_stat_peak_value")
        self._read_peak: Callable[[], int | None] = partial(read, "Allocated", index)
        self._earlier_peak = None
        if reset is not None:
            reset("Allocated", index)
        elif kind == "device":
            self._earlier_peak = self._read_peak()
        else:
            self._read_peak = start_resident_peak()
        self._start = read_clock()

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return read_clock() - self._start

    def peak_bytes(self) -> int | None:
        """Return the most memory since the start, with weights, if known."""
        peak = self._read_peak()
        return None if peak == self._earlier_peak else peak  # a peak that was not reset may be an earlier call's


def start_resident_peak() -> Callable[[], int | None]:
    """Return a function that reads the process's peak memory since now."""
    # Memory that earlier calls freed may still be resident, and would count again; glibc can return it.
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR_PEAK.write_text("5")
    except OSError:
        return lambda: None

    def read() -> int | None:
        line = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
        return int(line[1]) * 1024 if line else None

    return read


def explain_peak() -> str:
    """Explain the meaning of ``peak_bytes`` on this device with this Paddle."""
    core, kind, _ = _find_device()
    if kind == "host" and not hasattr(core, "host_memory_stat_reset_peak_value"):
        return "resident memory of the process"
    return "memory of Paddle's tensors" + (" on the GPU" if kind == "device" else "")


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


def _find_device() -> tuple[Any, str, int]:
    """Return Paddle's counters, whose memory they shall count, and the device's number."""
    import paddle
    from paddle.base import core

    device, _, index = paddle.get_device().partition(":")
    return (core, "device", int(index or 0)) if device == "gpu" else (core, "host", 0)
