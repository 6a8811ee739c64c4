"""Matching has no gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import paddle

F = TypeVar("F", bound=Callable[..., Any])


def disable_gradients(function: F) -> F:
    """A function that records no gradients.

    Paddle's own decorator keeps what was before in one place for all threads, and for calls within calls.
    """

    @functools.wraps(function)
    def without(*args: Any, **kwargs: Any) -> Any:
        with paddle.no_grad():
            return function(*args, **kwargs)

    return without  # type: ignore[return-value]
