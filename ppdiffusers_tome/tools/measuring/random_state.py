"""The global random generators, left where they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def untouched_random_state() -> Iterator[None]:
    """Whatever is drawn inside leaves Paddle's and numpy's global generators where they were."""
    import numpy as np
    import paddle

    paddle_state, numpy_state = paddle.get_rng_state(), np.random.get_state()
    try:
        yield
    finally:
        paddle.set_rng_state(paddle_state)
        np.random.set_state(numpy_state)
