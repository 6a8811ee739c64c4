"""What merging runs on a GPU, counted in a traced program: no GPU is needed. Costs: bench/gpu/roofline.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paddle
import pytest

import tiny
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.tools.bench.block import BlockCase
from ppdiffusers_tome.tools.bench.gpu.trace import TRACED, Data, Operator, trace

CASE = BlockCase(batch=2, height=16, width=16, channels=32)
TOKENS = CASE.batch * CASE.grid.num_tokens
PADDLE_2 = paddle.__version__.startswith("2.")
# Paddle 3 traces what a CPU could run: merging in bfloat16, matching in float32 only.
HALF, ANY = ("float16", "float16") if PADDLE_2 else ("bfloat16", "float32")
RESHAPE, MULTIPLY = ("reshape2", "elementwise_mul") if PADDLE_2 else ("reshape", "multiply")
OURS = [name for name in TRACED if name.startswith("ours")]
FEWER_KEYS = "ours, method=todo"
MATCHING = [name for name in OURS if name != FEWER_KEYS]


@pytest.fixture
def roofline() -> Any:
    if not PADDLE_2:
        pytest.skip("the roofline counts in programs of Paddle 2.6")
    from ppdiffusers_tome.tools.bench.gpu import roofline

    return roofline


def reused(case: BlockCase, x: Any, timestep: Any) -> Iterator[str]:
    """Ours with a matching that is there already."""
    num_left = case.grid.num_tokens // 2
    owner = paddle.static.data("owner", [TOKENS], "int32")
    inverse_count = paddle.static.data("inverse_count", [case.batch * num_left, 1], "float32")
    order = paddle.static.data("order", [case.batch, case.grid.num_tokens], "int64")
    matching = Matching(owner, inverse_count, order, case.batch, case.grid.num_tokens, num_left)
    merged = matching.reduce(x)
    yield "merge"
    matching.restore(merged)
    yield "unmerge"


def names(operators: list[Operator], stage: str) -> list[str]:
    """What runs in a stage; ``full`` is Paddle 3's way to write the axis of a gather."""
    return [
        f"{operator.name}{'_' * operator.in_place}"
        for operator in operators
        if operator.stage == stage and operator.name != "full"
    ]


def test_merging_and_unmerging_run_exactly_these_operators() -> None:
    """Views aside: two casts, a sum and a scale to merge, one gather to unmerge. Each more is a launch a block."""
    operators = trace(reused, CASE, HALF)
    # Paddle 2 casts from float32 to float32 where Paddle 3 does nothing.
    merging = [name for name in names(operators, "merge") if name != RESHAPE]
    if merging[3:5] == ["cast", f"{MULTIPLY}_"]:
        del merging[3]
    assert merging == ["cast", "empty", "scatter_", f"{MULTIPLY}_", "cast"]
    assert names(operators, "unmerge") == [RESHAPE, "gather", RESHAPE]


@pytest.mark.parametrize("name", MATCHING)
def test_matching_compares_all_at_once_as_a_gpu_should(name: str) -> None:
    products = [operator for operator in trace(TRACED[name], CASE, ANY) if operator.name.startswith("matmul")]
    assert len(products) == 1


def test_fewer_keys_are_one_gather_in_a_block() -> None:
    operators = trace(TRACED[FEWER_KEYS], CASE, ANY)
    assert names(operators, "match") == []
    assert names(operators, "merge") == ["index_select"]


@pytest.mark.parametrize("name", OURS)
def test_no_integers_with_a_channel_axis(name: str) -> None:
    def integers(contender: str) -> int:
        operators = trace(TRACED[contender], CASE, ANY)
        outputs = [data for operator in operators for data in operator.outputs]
        return max(data.size for data in outputs if data.dtype.startswith("int"))

    assert integers(name) <= TOKENS
    assert integers("port") > TOKENS


@pytest.mark.parametrize("name", OURS)
def test_merging_and_unmerging_run_less_than_the_ports(name: str) -> None:
    def number(contender: str) -> int:
        operators = trace(TRACED[contender], CASE, ANY)
        return len(names(operators, "merge") + names(operators, "unmerge"))

    assert 2 * number(name) < number("port")


def test_tracing_leaves_no_trace() -> None:
    before = tiny.random_states()
    trace(TRACED["port"], CASE, ANY)
    assert paddle.in_dynamic_mode()
    assert tiny.random_states() == before
    with pytest.raises(AttributeError, match="no such thing"):
        trace(broken, CASE, ANY)
    assert paddle.in_dynamic_mode()


def broken(case: BlockCase, x: Any, timestep: Any) -> Iterator[str]:
    yield "match"
    raise AttributeError("no such thing")


class TestCosts:
    """The rules, by hand, where a wrong one would tell a wrong story."""

    def test_adding_in_place_is_two_launches(self, roofline: Any) -> None:
        rows, sums, owner = Data((8, 5), "float32"), Data((4, 5), "float32"), Data((8,), "int32")
        slots = {"X": sums, "Ids": owner, "Updates": rows}
        adding = Operator("scatter", slots, (sums,), {"overwrite": False}, in_place=True)
        assert roofline.cost_of(adding) == roofline.Cost(2, 2 * 8 * 4 + 4 * 8 * 5 * 4)
        copying = Operator("scatter", slots, (sums,), {"overwrite": True})
        assert roofline.cost_of(copying) == roofline.Cost(2, 8 * 4 + 2 * 8 * 5 * 4 + 2 * 4 * 5 * 4)

    def test_gathering_reads_only_the_rows_it_takes(self, roofline: Any) -> None:
        tokens, index, rows = Data((9, 5), "float16"), Data((2,), "int32"), Data((2, 5), "float16")
        gather = Operator("gather", {"X": tokens, "Index": index}, (rows,), {"axis": 0})
        assert roofline.cost_of(gather) == roofline.Cost(1, 2 * 4 + 2 * 2 * 5 * 2)

    def test_views_are_free_until_their_gaps_are_copied(self, roofline: Any) -> None:
        operators = trace(TRACED["free"], CASE)
        assert [(operator.name, roofline.cost_of(operator).launches) for operator in operators] == [
            ("slice", 0), ("slice", 0), ("concat", 3),
        ]  # fmt: skip
        half_bytes = TOKENS // 2 * CASE.channels * 2
        assert roofline.cost_of(operators[-1]).num_bytes == 8 * half_bytes

    def test_products_are_counted(self, roofline: Any) -> None:
        costs = [roofline.cost_of(operator) for operator in trace(TRACED["ours"], CASE)]
        sources, destinations = 3 * TOKENS // 4, CASE.grid.num_tokens // 4
        assert sum(cost.flops for cost in costs) == 2 * sources * destinations * CASE.channels

    @pytest.mark.parametrize("name", OURS)
    def test_ours_launches_and_moves_less_than_the_port(self, roofline: Any, name: str) -> None:
        def total(contender: str, stages: tuple[str, ...]) -> Any:
            costs = roofline.costs_of(trace(TRACED[contender], BlockCase()), stages)
            return sum(costs, roofline.Cost())

        block, port = total(name, roofline.ONCE_A_BLOCK), total("port", roofline.ONCE_A_BLOCK)
        assert block.launches < port.launches
        assert 2 * block.num_bytes < port.num_bytes
        assert total(name, roofline.REUSED).launches <= 7

    def test_unknown_operator_is_an_error(self, roofline: Any) -> None:
        with pytest.raises(SystemExit, match="no rule for the operator sparkle"):
            roofline.cost_of(Operator("sparkle", {}, (), {}))
