"""``paddle.amp.auto_cast`` around a model, read off a program: on a CPU Paddle switches it off where it runs layers."""

from __future__ import annotations

from typing import Any

import paddle
import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.state.reducer import build_reducer


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="programs of Paddle 2.6 are cast afterwards")
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("settings", [dict(tile=4), *(dict(method=name) for name in METHODS)], ids=str)
def test_what_ranks_and_sums_tokens_is_not_rounded(settings: dict[str, Any], level: str) -> None:
    """Products of bfloat16 rank mostly their rounding."""
    paddle.enable_static()
    try:
        program = paddle.static.Program()
        with paddle.static.program_guard(program), paddle.amp.auto_cast(level=level, dtype="bfloat16"):
            tokens = paddle.static.data("tokens", [2, 256, 8], "float32")
            timestep = paddle.static.data("timestep", [1], "float32")
            reduction = build_reducer(ToMeConfig(**settings), Layout(Grid(16, 16)), 128, timestep=timestep)(tokens)
            assert reduction is not None
            merged = reduction.reduce(tokens)
            assert paddle.matmul(merged, merged, transpose_y=True).dtype == paddle.bfloat16
        results = [(op.name(), value) for op in program.global_block().ops for value in op.results()]
        rounded = [name for name, x in results if x.is_dense_tensor_type() and x.dtype == paddle.bfloat16]
        assert rounded[-1:] == ["pd_op.matmul"]
        assert set(rounded[:-1]) == {"pd_op.cast"}  # of the last product's factors
    finally:
        paddle.disable_static()
