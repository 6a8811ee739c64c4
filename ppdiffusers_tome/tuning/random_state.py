"""State of the global random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import paddle


@contextlib.contextmanager
def untouched_random_state() -> Iterator[None]:
    """Restore the global generators of Paddle, numpy and ppdiffusers afterwards.

    ppdiffusers keeps those of ``pipe(generator=name)`` in ``paddle.Generator()``, where PyTorch has a class; they
    advance from image to image.
    """
    named = getattr(paddle.Generator(), "states_", {}) if hasattr(paddle, "Generator") else {}
    paddle_state, numpy_state, named_states = paddle.get_rng_state(), np.random.get_state(), dict(named)
    try:
        yield
    finally:
        paddle.set_rng_state(paddle_state)
        np.random.set_state(numpy_state)
        named.update(named_states)
