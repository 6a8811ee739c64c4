"""What Paddle offers to search NaNs with finds none that merging made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome.merging.methods import METHODS


@pytest.fixture
def _check_nans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every operator check its output, and let empty tensors hold NaNs, as used memory may.

    ``paddle.amp.debugging.enable_tensor_checker`` sets the same flag.
    """

    def create_garbage(shape: Any, dtype: Any = "float32") -> paddle.Tensor:
        return paddle.full(shape, float("nan") if "float" in str(dtype) else 0, dtype)

    monkeypatch.setattr(paddle, "empty", create_garbage)
    paddle.set_flags({"FLAGS_check_nan_inf": 1})
    yield
    paddle.set_flags({"FLAGS_check_nan_inf": 0})


@pytest.mark.usefixtures("_check_nans")
@pytest.mark.parametrize("method", METHODS)
def test_a_model_runs_where_every_operator_is_checked_for_nans(method: str) -> None:
    unet = tiny.small_unet().apply_tome(ratio=0.5, method=method)
    assert np.isfinite(tiny.run_unet(unet, batch=1, height=8, width=8)).all()


@pytest.mark.usefixtures("_check_nans")
@pytest.mark.parametrize("method", [None, *METHODS])
def test_a_training_step_runs_where_every_operator_is_checked_for_nans(method: str | None) -> None:
    """Without ToMe, too, which says that Paddle's check itself stands a backward pass."""
    unet = tiny.small_unet() if method is None else tiny.small_unet().apply_tome(ratio=0.5, method=method)
    unet.train()
    (unet(tiny.latent(1, 8, 8), 500, tiny.text(1)).sample ** 2).mean().backward()
    gradients = [parameter.grad.numpy() for parameter in unet.parameters() if parameter.grad is not None]
    assert len(gradients) > 20
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.usefixtures("_check_nans")
def test_the_check_sees_a_nan_of_a_backward_pass() -> None:
    x = paddle.zeros([2])
    x.stop_gradient = False
    with pytest.raises((RuntimeError, OSError, ValueError), match=r"(?i)nan"):
        (paddle.sqrt(x) * 0).sum().backward()
