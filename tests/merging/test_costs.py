"""The costs of a matching: its operators, and constants, which are kept as long as their arrays and no longer.

The operators are read off a program, as on a CPU Paddle switches mixed precision off where it runs layers. Their number
does not grow: each is at least one launch in every block on a GPU.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import pytest

from benchmarks.gpu_trace import trace_with_inplace
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.merging import constants
from ppdiffusers_tome.merging.constants import load_constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.state.plan import Plan

GRID = Grid(16, 16)
PADDLE_2 = paddle.__version__.startswith("2.")
# What runs nothing: inputs of the program, shapes and views, and constants, which a call makes once.
NO_KERNEL = {
    "assign_value", "assign_value_", "combine", "data", "fill_constant", "flatten", "flatten_contiguous_range", "full",
    "full_int_array", "reshape", "reshape2", "share_data_", "squeeze", "squeeze2", "unsqueeze", "unsqueeze2",
}  # fmt: skip


def list_operators(settings: dict[str, Any], dtype: str = "float32") -> dict[str, list[str]]:
    layout, config, stages, before = Layout(GRID), ToMeConfig(**settings), dict[str, list[str]](), 0
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()), trace_with_inplace(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Paddle says that a program does nothing in place
            x = paddle.static.data("x", [2, GRID.num_tokens, 32], dtype)
            timestep = paddle.static.data("timestep", [1], "int64")
            for stage in ("draw", "match", "reduce and restore"):
                if stage == "draw":
                    plan = Plan(config, layout, GRID.num_merged(config.highest_ratio), timestep=timestep)
                    _ = plan.kept if config.method == "todo" else plan.tiles
                elif stage == "match":
                    reduction: Any = plan.make_reduction(x)
                else:
                    reduction.restore(reduction.reduce(x))
                operators = paddle.static.default_main_program().global_block().ops
                names = [operator.type if PADDLE_2 else operator.name().rpartition(".")[2] for operator in operators]
                stages[stage] = [name for name in names[before:] if name not in NO_KERNEL]
                before = len(names)
    finally:
        paddle.disable_static()
    return stages


# Upper bounds of drawing, matching, and reducing with restoring, on any Paddle; where fewer do, lower them here.
BOUNDS = {
    "tome": (dict(ratio=0.5), (16, 33, 4)),
    "tome in tiles": (dict(ratio=0.5, tile=8), (18, 35, 4)),
    "keys": (dict(ratio=0.5, method="keys"), (16, 33, 3)),
    "todo": (dict(ratio=0.7, method="todo"), (18, 0, 1)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_operators_do_not_grow(name: str) -> None:
    settings, bounds = BOUNDS[name]
    for (stage, operators), bound in zip(list_operators(settings).items(), bounds, strict=True):
        assert len(operators) <= bound, f"{stage}: {operators}"


@pytest.mark.skipif(not PADDLE_2, reason="Paddle 3 traces only what a CPU could run")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operators_do_not_grow_in_half_precision(dtype: str) -> None:
    """A program has the maximum in one operator; outside of one it is read in three."""
    stages = list_operators(dict(ratio=0.5), dtype)
    assert [len(operators) for operators in stages.values()] == [16, 33, 6], stages


@pytest.mark.skipif(PADDLE_2, reason="programs of Paddle 2.6 are cast afterwards")
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
            plan = Plan(ToMeConfig(**settings), Layout(Grid(16, 16)), 128, timestep=timestep)
            reduction = plan.make_reduction(tokens)
            assert reduction is not None
            merged = reduction.reduce(tokens)
            assert paddle.matmul(merged, merged, transpose_y=True).dtype == paddle.bfloat16
        results = [(op.name(), value) for op in program.global_block().ops for value in op.results()]
        rounded = [name for name, x in results if x.is_dense_tensor_type() and x.dtype == paddle.bfloat16]
        assert rounded[-1:] == ["pd_op.matmul"]
        assert set(rounded[:-1]) == {"pd_op.cast"}  # of the last product's factors
    finally:
        paddle.disable_static()


@dataclass(frozen=True, eq=False)
class Numbers:
    array: Any
    count: int


def test_arrays_become_tensors_once_and_as_long_as_they_are_there() -> None:
    before = len(constants._loaded)
    for number in range(200):
        numbers = Numbers(np.full(3, number), number)
        found = load_constants(numbers)
        assert (found.array.tolist(), found.count) == ([number] * 3, number)
        assert load_constants(numbers) is found
        del numbers
    assert len(constants._loaded) <= before


def test_a_hundred_sizes_and_ratios_in_turns_keep_what_is_in_use() -> None:
    """The four caches hold 32 entries each."""

    def reduce_at(side: int, config: ToMeConfig) -> None:
        layout = Layout(Grid(side, side))
        plan = Plan(config, layout, config.num_merged(layout.grid), timestep=paddle.to_tensor([5]))
        plan.make_reduction(paddle.zeros([1, layout.num_tokens, 2]))

    for number in (*range(100), *range(100)):
        for config in (ToMeConfig(0.5, tile=4), ToMeConfig(0.5, method="todo")):
            reduce_at(4 + number, config)
        reduce_at(32, ToMeConfig(0.1 + number / 200, method="todo"))  # as of a ramp
    assert 0 < len(constants._loaded) <= 32 * 4
