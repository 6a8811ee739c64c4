"""Seconds, what else the machine computed meanwhile, and random state."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROCESSORS = Path("/proc/stat")


def read_clock() -> float:
    """Wait until the device is idle, and read a clock in seconds."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.synchronize()
    return time.perf_counter()


class Clock:
    """A clock that starts at once, and notices what other programs compute."""

    def __init__(self) -> None:
        self._work, self._start = _read_work(), read_clock()

    def read_seconds(self) -> float:
        """Return the seconds since the start."""
        return read_clock() - self._start

    def is_disturbed(self) -> bool:
        """Return whether other programs computed meanwhile, and hardly a core was idle."""
        busy, own, total = (now - then for now, then in zip(_read_work(), self._work, strict=True))
        return busy - own > max(0.1, 0.1 * total) and busy > 0.9 * total


def _read_work() -> tuple[float, float, float]:
    """Return core-seconds: busy ones, those of this process, and all."""
    try:
        lines = re.findall(r"^cpu(\d+) (.*)", _PROCESSORS.read_text(), re.MULTILINE)
    except OSError:  # not on Linux
        return 0.0, 0.0, 0.0
    usable, tick = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
    cores = [list(map(int, numbers.split()[:8])) for core, numbers in lines if int(core) in usable]
    total, idle = sum(map(sum, cores)), sum(core[3] + core[4] for core in cores)  # waiting for a disk is idle, too
    return (total - idle) / tick, time.process_time(), total / tick


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
