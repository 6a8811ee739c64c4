"""Memory of the device: the peak of a call and what is free; seconds are in ``tuning.measurement``."""

from __future__ import annotations

from collections.abc import Iterable

from ppdiffusers_tome.tools.measure.machine import free_memory
from ppdiffusers_tome.tuning.measurement import Meter as Meter
from ppdiffusers_tome.tuning.measurement import ResidentMemory as ResidentMemory
from ppdiffusers_tome.tuning.measurement import device_memory, memory_kind


def memory_meaning() -> str:
    """What ``peak_bytes`` means on this device with this Paddle."""
    return device_memory().meaning


def highest(peaks: Iterable[int | None]) -> int | None:
    """The highest of several peaks; None when one of them was not measured."""
    peaks = list(peaks)
    return None if None in peaks else max(peaks)  # type: ignore[type-var]


def tensor_bytes() -> tuple[int, int]:
    """Bytes that Paddle's tensors hold on this device, now and at the most since the process began."""
    from paddle.base import core

    kind, index = memory_kind()
    values = [getattr(core, f"{kind}_memory_stat_{which}_value")("Allocated", index) for which in ("current", "peak")]
    return int(values[0]), int(values[1])


def available_bytes() -> int | None:
    """Bytes that new tensors can take on this device; None when it is not known."""
    import paddle

    kind, index = memory_kind()
    if kind == "device":
        return int(paddle.device.cuda.get_device_properties(index).total_memory - tensor_bytes()[0])
    return free_memory().get("MemAvailable")
