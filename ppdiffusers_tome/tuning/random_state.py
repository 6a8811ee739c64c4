"""State of the global random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle


@contextlib.contextmanager
def untouched_random_state() -> Iterator[None]:
    """Restore the global generators of Paddle, numpy and ppdiffusers afterwards."""
    named = generator_states()
    paddle_state, numpy_state, named_states = paddle.get_rng_state(), np.random.get_state(), dict(named)
    try:
        yield
    finally:
        paddle.set_rng_state(paddle_state)
        np.random.set_state(numpy_state)
        named.update(named_states)


def generator_states() -> dict[str, Any]:
    """Return the live states of the generators that ``pipe(generator=name)`` names.

    They advance from image to image. ppdiffusers keeps them in ``paddle.Generator()``, where PyTorch has a class.
    """
    return getattr(paddle.Generator(), "states_", {}) if hasattr(paddle, "Generator") else {}
