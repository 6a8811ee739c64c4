"""Seconds and peak memory of a call on Paddle's device."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_STATUS, _CLEAR_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter:
    """A clock and a memory counter that start when they are created."""

    def __init__(self) -> None:
        self._memory = device_memory()
        self._memory.reset()
        self._clock = DeviceClock()

    def seconds(self) -> float:
        """Return the seconds since the start or the last reading."""
        return self._clock.lap()

    def peak_bytes(self) -> int | None:
        """Return the most memory since the start, with weights, if known."""
        return self._memory.peak_bytes()


class DeviceClock:
    """A clock that reads the time at which the device is idle."""

    def __init__(self) -> None:
        synchronize()
        self._start = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the start or the last lap."""
        synchronize()
        start, self._start = self._start, time.perf_counter()
        return self._start - start


def synchronize() -> None:
    """Wait until the device is idle."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.synchronize()


class TensorMemory:
    """Paddle's count of the bytes that its tensors hold."""

    def __init__(self) -> None:
        import paddle
        from paddle.base import core

        device, _, index = paddle.get_device().partition(":")
        kind, self._index = ("device", int(index or 0)) if device == "gpu" else ("host", 0)
        self.meaning = "memory of Paddle's tensors" + (" on the GPU" if kind == "device" else "")
        self._current = getattr(core, f"{kind}_memory_stat_current_value")
        self._peak = getattr(core, f"{kind}_memory_stat_peak_value")
        self._reset = getattr(core, f"{kind}_memory_stat_reset_peak_value", None)
        self.is_usable = kind == "device" or self._reset is not None

    def reset(self) -> None:
        self._peak_before = self._peak("Allocated", self._index)
        if self._reset is not None:
            self._reset("Allocated", self._index)

    def current_bytes(self) -> int:
        return int(self._current("Allocated", self._index))

    def peak_bytes(self) -> int | None:
        peak = int(self._peak("Allocated", self._index))
        # Paddle 2.6 cannot reset a peak, so it belongs to this call only if the call raised it.
        return peak if self._reset is not None or peak > self._peak_before else None


class ResidentMemory:
    """The kernel's count of the process's resident memory (Linux)."""

    meaning = "resident memory of the process"

    def reset(self) -> None:
        # Memory that earlier calls freed may still be resident, and would count again; glibc can return it.
        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._can_reset = False
        with suppress(OSError):
            _CLEAR_PEAK.write_text("5")
            self._can_reset = True

    def peak_bytes(self) -> int | None:
        line = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text()) if self._can_reset else None
        return int(line[1]) * 1024 if line else None


def device_memory() -> TensorMemory | ResidentMemory:
    """Return the memory counter that works on this device with this Paddle."""
    tensors = TensorMemory()
    return tensors if tensors.is_usable else ResidentMemory()


def highest_peak(peaks: Iterable[int | None]) -> int | None:
    """Return the highest peak; None if one was not measured."""
    peaks = list(peaks)
    return None if None in peaks else max(peaks)  # type: ignore[type-var]
