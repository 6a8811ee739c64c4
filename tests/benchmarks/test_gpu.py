"""What merging runs on a GPU, counted in a traced program without one, and the estimate that follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest

from benchmarks import gpu_presets, gpu_roofline
from benchmarks.block import BlockCase
from benchmarks.gpu_costs import Cost, attention_costs
from benchmarks.gpu_joint import JointTransformer
from benchmarks.gpu_presets import FAMILIES, FILE
from benchmarks.gpu_trace import TRACED, Data, Operator, _operators, _static_mode, trace
from benchmarks.random_models import RANDOM_UNETS
from ppdiffusers_tome.merging.matching import Matching

CASE = BlockCase(batch=2, height=16, width=16, channels=32)
TOKENS = CASE.batch * CASE.grid.num_tokens
PADDLE_2 = paddle.__version__.startswith("2.")
needs_paddle_2 = pytest.mark.skipif(not PADDLE_2, reason="the roofline counts in programs of Paddle 2.6")
# Paddle 3 traces what a CPU could run: merging in bfloat16, matching in float32 only.
HALF, ANY = ("float16", "float16") if PADDLE_2 else ("bfloat16", "float32")
RESHAPE, MULTIPLY = ("reshape2", "elementwise_mul") if PADDLE_2 else ("reshape", "multiply")
OURS = [name for name in TRACED if name.startswith("ours")]
FEWER_KEYS = "ours, method=todo"


def run_reused(case: BlockCase, x: Any, timestep: Any) -> Iterator[str]:
    """Merge with a matching that exists."""
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
    """The operators of a stage; ``full`` is Paddle 3's way to write the axis of a gather."""
    return [f"{op.name}{'_' * op.in_place}" for op in operators if op.stage == stage and op.name != "full"]


def test_merging_and_unmerging_run_exactly_these_operators() -> None:
    """Views aside: two casts, a sum and a scale to merge, one gather to unmerge. Each more is a launch a block."""
    operators = trace(run_reused, CASE, HALF)
    # Paddle 2 casts from float32 to float32 where Paddle 3 does nothing.
    merging = [name for name in names(operators, "merge") if name != RESHAPE]
    if merging[3:5] == ["cast", f"{MULTIPLY}_"]:
        del merging[3]
    assert merging == ["cast", "empty", "scatter_", f"{MULTIPLY}_", "cast"]
    assert names(operators, "unmerge") == [RESHAPE, "gather", RESHAPE]


def test_fewer_keys_are_one_gather_in_a_block() -> None:
    operators = trace(TRACED[FEWER_KEYS], CASE, ANY)
    assert (names(operators, "match"), names(operators, "merge")) == ([], ["index_select"])


@pytest.mark.parametrize("name", OURS)
def test_ours_runs_less_than_the_port(name: str) -> None:
    ours, port = trace(TRACED[name], CASE, ANY), trace(TRACED["port"], CASE, ANY)

    def count(operators: list[Operator]) -> int:
        return len(names(operators, "merge") + names(operators, "unmerge"))

    def most_integers(operators: list[Operator]) -> int:
        return max(data.size for op in operators for data in op.outputs if data.dtype.startswith("int"))

    assert 2 * count(ours) < count(port)
    assert most_integers(ours) <= TOKENS < most_integers(port)  # the port's have a channel axis
    if name != FEWER_KEYS:  # a GPU compares all at once
        assert len([op for op in ours if op.name.startswith("matmul")]) == 1


def test_adding_in_place_is_two_launches() -> None:
    rows, sums, owner = Data((8, 5), "float32"), Data((4, 5), "float32"), Data((8,), "int32")
    slots = {"X": sums, "Ids": owner, "Updates": rows}
    adding = Operator("scatter", slots, (sums,), {"overwrite": False}, in_place=True)
    assert gpu_roofline.cost_of(adding) == Cost(2, 2 * 8 * 4 + 4 * 8 * 5 * 4)
    with pytest.raises(SystemExit, match="no rule for the operator sparkle"):
        gpu_roofline.cost_of(Operator("sparkle", {}, (), {}))


@needs_paddle_2
def test_products_and_copies_are_counted() -> None:
    costs = [gpu_roofline.cost_of(op) for op in trace(TRACED["ours"], CASE)]
    assert sum(cost.flops for cost in costs) == 2 * (3 * TOKENS // 4) * (CASE.grid.num_tokens // 4) * CASE.channels
    free = [(op.name, gpu_roofline.cost_of(op).launches) for op in trace(TRACED["free"], CASE)]
    assert free == [("slice", 0), ("slice", 0), ("concat", 3)]  # views are free until their gaps are copied


def all_tokens(level: int, tokens: int) -> int:
    return tokens


def total(costs: list[Cost]) -> Cost:
    return sum(costs, Cost())


@pytest.mark.parametrize(
    ("family", "pixels", "teraflops"),
    [
        ("sd15", 512, 0.80),  # the usual figure, two operations a multiplication
        ("sdxl", 1024, 6.0 + 0.76),  # usually counted without the products of queries, keys and values: those are 0.76
        ("flux", 1024, 3726.87 / 50),  # of 50 steps: the benchmarks in vipshop/cache-dit
    ],
)
def test_operations_are_those_that_are_published(family: str, pixels: int, teraflops: float) -> None:
    costs = FAMILIES[family].denoiser.costs(pixels, 1, all_tokens)
    assert total(costs).flops / 1e12 == pytest.approx(teraflops, rel=0.01)


@needs_paddle_2
@pytest.mark.parametrize("family", FAMILIES)
def test_kept_estimate_is_what_the_script_computes(family: str) -> None:
    """Else run: PYTHONPATH=tests python -m benchmarks.gpu_presets --page docs/measured/gpu/README.md"""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    assert list(gpu_presets.estimate_family(family)) == [row for row in kept if row["family"] == family]
    assert FILE.read_text(encoding="utf-8") == gpu_presets.to_json(kept)


@pytest.fixture
def count_traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], Cost]]:
    """Count what a function traces in half precision; attention itself, which is fused, is omitted."""
    monkeypatch.setattr(F, "scaled_dot_product_attention_", lambda query, *_, **__: query, raising=False)
    for name in ("layer_norm", "group_norm", "gelu", "silu", "exp", "cos", "sin", "nearest_interp_v2", "split"):
        monkeypatch.setitem(gpu_roofline.RULES, name, gpu_roofline._all_in_all_out)
    monkeypatch.setitem(gpu_roofline.RULES, "shape", lambda operator: Cost())
    monkeypatch.setitem(gpu_roofline.RULES, "conv2d", _count_convolution)
    before = paddle.get_default_dtype()

    def count(function: Callable[[], Any]) -> Cost:
        main, start = paddle.static.Program(), paddle.static.Program()
        with _static_mode(), paddle.utils.unique_name.guard(), paddle.static.program_guard(main, start):
            paddle.set_default_dtype("float16")
            function()
            return total([gpu_roofline.cost_of(operator) for operator in _operators(main.global_block())])

    yield count
    paddle.set_default_dtype(before)


def _count_convolution(operator: Operator) -> Cost:
    weights = operator.inputs["Filter"]
    flops = 2 * operator.outputs[0].size * weights.size // weights.shape[0]
    return gpu_roofline._all_in_all_out(operator) + Cost(0, 0, flops)


def data(*shape: int, dtype: str = "float16") -> Any:
    return paddle.static.data(paddle.utils.unique_name.generate("x"), list(shape), dtype)


def assert_close(costs: list[Cost], omitted: list[Cost], traced: Cost) -> None:
    """The stand-in for attention in traced programs returns its queries."""
    ours, fused = total(costs), total([cost for cost in omitted if cost.flops])
    assert ours.flops - fused.flops == pytest.approx(traced.flops, rel=1e-5)
    assert ours.launches - fused.launches == pytest.approx(traced.launches, rel=0.05)
    assert ours.num_bytes - fused.num_bytes == pytest.approx(traced.num_bytes, rel=0.03)


@needs_paddle_2
@pytest.mark.parametrize("family", ["sd15", pytest.param("sdxl", marks=pytest.mark.sweep)])
def test_unets_cost_what_ppdiffusers_own_do(family: str, count_traced: Callable[[Callable[[], Any]], Cost]) -> None:
    import ppdiffusers
    from ppdiffusers.models.attention_processor import AttnProcessor2_5

    batch, side = 2, 64
    # A convolution with one point for a kernel costs what a linear layer does, and traces its shape.
    config = {**RANDOM_UNETS[f"{family}-random"], "use_linear_projection": True}

    def run_unet() -> None:
        unet = ppdiffusers.UNet2DConditionModel(**config)
        unet.eval()
        unet.set_attn_processor(AttnProcessor2_5())
        conditions = {"text_embeds": data(batch, 1280), "time_ids": data(batch, 6)}
        text = data(batch, 77, config["cross_attention_dim"])
        unet(data(batch, 4, side, side), data(1, dtype="int64"), text, added_cond_kwargs=conditions)

    denoiser, fused = FAMILIES[family].denoiser, []
    for each in denoiser.attentions(8 * side):
        for keys in (each.num_tokens, 77):
            fused += each.number * attention_costs(batch, each.num_tokens, keys, each.channels)
    assert_close(denoiser.costs(8 * side, batch, all_tokens), fused, count_traced(run_unet))


@needs_paddle_2
def test_joint_block_costs_what_ppdiffusers_own_does(count_traced: Callable[[Callable[[], Any]], Cost]) -> None:
    from ppdiffusers.models.attention import JointTransformerBlock

    batch, tokens, text, channels = 2, 32 * 32, 154, 1536

    def run_block() -> None:
        block = JointTransformerBlock(channels, channels // 64, channels)
        block.eval()
        states, context = data(batch, tokens, channels), data(batch, text, channels)
        block(hidden_states=states, encoder_hidden_states=context, temb=data(batch, channels))

    def count(blocks: int) -> Cost:
        return total(JointTransformer(channels, 64, blocks, text, 2048, normed=False).costs(512, batch, all_tokens))

    two, one = count(2), count(1)
    block = Cost(two.launches - one.launches, two.num_bytes - one.num_bytes, two.flops - one.flops)
    assert_close([block], attention_costs(batch, tokens + text, tokens + text, channels), count_traced(run_block))
