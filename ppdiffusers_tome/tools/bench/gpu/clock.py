"""A GPU's own clock: the time between two CUDA events, in which the host's waiting has no part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppdiffusers_tome.tools.measure.clock import garbage_kept, seconds_of
from ppdiffusers_tome.tuning.measurement import synchronize

EVENTS = "CUDA events"
HOST = "the host's, from one moment at which the device had done all to another"


def clock_here() -> tuple[Callable[[Callable[[], Any]], float], str]:
    """The best clock for the device that Paddle runs on, and what it is called.

    Paddle tells the time between CUDA events since 3.0. Before, and where there is no GPU, it is the host's.
    """
    import paddle

    event = paddle.device.cuda.Event
    if paddle.get_device().startswith("gpu") and hasattr(event, "elapsed_time"):
        return lambda work: seconds_between_events(work, event), EVENTS
    return seconds_of, HOST


def seconds_between_events(work: Callable[[], Any], event: Callable[..., Any]) -> float:
    """How long a piece of work takes the GPU: from when it begins to when it has done all that it was given.

    Args:
        work: what to time.
        event: makes an event; ``paddle.device.cuda.Event``.
    """
    begun, ended = event(enable_timing=True), event(enable_timing=True)
    with garbage_kept():
        synchronize()  # what came before is no part of it
        begun.record()
        work()
        ended.record()
        ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000
