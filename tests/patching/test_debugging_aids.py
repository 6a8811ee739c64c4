"""What Paddle offers to search NaNs with finds none that merging made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome.merging.methods import METHODS


@contextmanager
def checking_nans() -> Iterator[None]:
    """Let every operator check its output, and let empty tensors hold NaNs, as used memory may.

    ``paddle.amp.debugging.enable_tensor_checker`` sets the same flag.
    """

    def create_garbage(shape: Any, dtype: Any = "float32") -> paddle.Tensor:
        return paddle.full(shape, float("nan") if "float" in str(dtype) else 0, dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paddle, "empty", create_garbage)
        paddle.set_flags({"FLAGS_check_nan_inf": 1})
        try:
            yield
        finally:
            paddle.set_flags({"FLAGS_check_nan_inf": 0})


@pytest.mark.parametrize("method", METHODS)
def test_a_model_runs_where_every_operator_is_checked_for_nans(method: str) -> None:
    unet = tiny.small_unet().apply_tome(ratio=0.5, method=method)
    expected = tiny.run_unet(unet, batch=1, height=8, width=8)
    with checking_nans():
        assert np.array_equal(tiny.run_unet(unet, batch=1, height=8, width=8), expected)
