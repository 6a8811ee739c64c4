"""Seconds and peak memory of a piece of work, on whatever device Paddle runs; never a number that was not measured."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ppdiffusers_tome.tools.measuring.clock import DeviceClock
from ppdiffusers_tome.tools.measuring.machine import free_memory

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter:
    """Measures whatever runs from the moment it is made."""

    def __init__(self) -> None:
        self._memory = _memory()
        self._memory.reset()
        self._clock = DeviceClock()

    def seconds(self) -> float:
        """Wall clock until the device is done, since the meter was made or was asked for them before."""
        return self._clock.lap()

    def peak_bytes(self) -> int | None:
        """The most memory in use since the meter was made, weights included; None when it could not be measured."""
        return self._memory.peak_bytes()


def memory_meaning() -> str:
    """What ``peak_bytes`` means on this device with this Paddle."""
    return _memory().meaning


def highest(peaks: Iterable[int | None]) -> int | None:
    """The highest of several peaks; None when one of them was not measured."""
    peaks = list(peaks)
    return None if None in peaks else max(peaks)  # type: ignore[type-var]


class TensorMemory:
    """Paddle's own count of the bytes its tensors hold, on the GPU or the host; its peak can be reset."""

    def __init__(self, kind: str, index: int, meaning: str) -> None:
        from paddle.base import core

        self.meaning = meaning
        self._reset = getattr(core, f"{kind}_memory_stat_reset_peak_value", None)
        self._peak = getattr(core, f"{kind}_memory_stat_peak_value")
        self._index = index
        self.works = self._reset is not None

    def reset(self) -> None:
        self._before = self._peak("Allocated", self._index)
        if self._reset is not None:
            self._reset("Allocated", self._index)

    def peak_bytes(self) -> int | None:
        peak = int(self._peak("Allocated", self._index))
        # A peak that cannot be reset (Paddle 2.6) belongs to this work only if this work raised it.
        return peak if self._reset is not None or peak > self._before else None


class ResidentMemory:
    """The kernel's count of the process's resident memory; its peak is reset through ``/proc/self/clear_refs``."""

    meaning = "resident memory of the process"

    def reset(self) -> None:
        # What earlier work freed may still be resident; hand it back, or it would count again. (glibc only.)
        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        try:
            _CLEAR.write_text("5")
            self._works = True
        except OSError:
            self._works = False

    def peak_bytes(self) -> int | None:
        line = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text()) if self._works else None
        return int(line[1]) * 1024 if line else None


def tensor_bytes() -> tuple[int, int]:
    """Bytes that Paddle's tensors hold on this device, now and at the most since the process began."""
    from paddle.base import core

    kind, index = _device()
    values = [getattr(core, f"{kind}_memory_stat_{which}_value")("Allocated", index) for which in ("current", "peak")]
    return int(values[0]), int(values[1])


def available_bytes() -> int | None:
    """Bytes that new tensors can take on this device; None when it is not known."""
    import paddle

    kind, index = _device()
    if kind == "device":
        return int(paddle.device.cuda.get_device_properties(index).total_memory - tensor_bytes()[0])
    return free_memory().get("MemAvailable")


def _memory() -> TensorMemory | ResidentMemory:
    """What can be measured on this device with this Paddle."""
    kind, index = _device()
    if kind == "device":
        return TensorMemory(kind, index, "memory of Paddle's tensors on the GPU")
    tensors = TensorMemory(kind, index, "memory of Paddle's tensors")
    return tensors if tensors.works else ResidentMemory()


def _device() -> tuple[str, int]:
    """Paddle's own name for the kind of memory in use, and the device's number."""
    import paddle

    device, _, index = paddle.get_device().partition(":")
    return ("device", int(index or 0)) if device == "gpu" else ("host", 0)
