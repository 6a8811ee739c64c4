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


TRAINING = """
import json, sys
import numpy as np, paddle
import tiny, ppdiffusers_tome

paddle.set_flags({"FLAGS_check_nan_inf": 1})
counts = []
for method in (None, *sys.argv[1:]):
    dit = tiny.dit(num_layers=1)
    if method is not None:
        dit.apply_tome(ratio=0.5, method=method)
    dit.train()
    given = dict(timestep=paddle.full([1], 500.0), class_labels=paddle.zeros([1], "int64"), return_dict=False)
    (dit(tiny.latent(1, 8, 8), **given)[0] ** 2).mean().backward()
    gradients = [parameter.grad for parameter in dit.parameters() if parameter.grad is not None]
    counts.append(sum(bool(np.isfinite(gradient.numpy()).all()) for gradient in gradients))
print(json.dumps(counts))
"""


def test_a_training_step_runs_where_every_operator_is_checked_for_nans() -> None:
    """Without ToMe, too, which says that Paddle's check itself stands a backward pass.

    In a process of its own, as there the check keeps megabytes for each operator, with ToMe or without.
    """
    plain, *merged = tiny.run_in_new_process(TRAINING, *METHODS)
    assert plain > 20
    assert merged == [plain] * len(METHODS)


def test_the_check_sees_a_nan_of_a_backward_pass() -> None:
    x = paddle.zeros([2])
    x.stop_gradient = False
    with checking_nans(), pytest.raises((RuntimeError, OSError, ValueError), match=r"(?i)nan"):
        (paddle.sqrt(x) * 0).sum().backward()
