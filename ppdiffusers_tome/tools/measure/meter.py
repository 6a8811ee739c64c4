"""Seconds and peak memory of a piece of work. Imports Paddle late."""

import gc
from collections.abc import Iterable

from ppdiffusers_tome.tuning.measurement import Clock


class Meter(Clock):
    """A clock and a memory counter that start when they are created.

    Memory is that of Paddle's tensors. What earlier work left to the garbage collector is collected before, as it would
    count, or be collected meanwhile.
    """

    def __init__(self) -> None:
        gc.collect()
        _call_counter("reset_peak_value")
        super().__init__()

    def peak_bytes(self) -> int | None:
        """Return the most memory since the start, with weights, if measured."""
        return _call_counter("peak_value")


def explain_peak() -> str:
    """Explain the meaning of ``peak_bytes`` on this device."""
    import paddle

    return "memory of Paddle's tensors" + (" on the GPU" if paddle.get_device().startswith("gpu") else "")


def find_highest_peak(peaks: Iterable[int | None]) -> int | None:
    """Return the highest peak; None if one was not measured."""
    peaks = list(peaks)
    return None if None in peaks else max(peaks)  # type: ignore[type-var]


def _call_counter(name: str) -> int | None:
    """Call a function of Paddle's counter of tensors on the device."""
    import paddle
    from paddle.base import core

    if not hasattr(core, "host_memory_stat_reset_peak_value"):  # Paddle 2.6 cannot reset a peak
        return None
    device, _, index = paddle.get_device().partition(":")
    place, number = ("device", int(index or 0)) if device == "gpu" else ("host", 0)
    return getattr(core, f"{place}_memory_stat_{name}")("Allocated", number)
