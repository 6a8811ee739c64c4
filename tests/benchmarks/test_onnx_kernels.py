"""The kernels of the benchmarks give Paddle's result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiny
from benchmarks.onnx_kernels import use_kernels
from patching.processors import CASES
from ppdiffusers_tome import apply_tome


@pytest.mark.parametrize("call", [{}, CASES["text-mask"].call])
@pytest.mark.parametrize("is_merged", [False, True])
def test_kernels_give_paddles_result(call: dict[str, Any], is_merged: bool) -> None:
    unet = apply_tome(tiny.unet(), **tiny.MERGE_ALL) if is_merged else tiny.unet()
    expected = tiny.run_unet(unet, **call)
    use_kernels(unet)
    found = tiny.run_unet(unet, **call)
    assert 0 < np.abs(found - expected).max() <= 5e-6 * max(1, np.abs(expected).max())
