"""State of the global random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def untouched_random_state() -> Iterator[None]:
    """Restore the global generators of Paddle, numpy and ppdiffusers afterwards."""
    import numpy as np
    import paddle

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
    import paddle

    generator = getattr(paddle, "Generator", None)
    return {} if generator is None else getattr(generator(), "states_", {})
