"""Seconds and random state."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


def read_clock() -> float:
    """Wait until the device is idle, and read a clock in seconds."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.synchronize()
    return time.perf_counter()


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
