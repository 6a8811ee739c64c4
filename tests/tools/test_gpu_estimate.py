"""What presets are estimated to save on a GPU: the shapes behind it, the kept figures, and the page that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.bench.gpu import presets as script
from ppdiffusers_tome.tools.bench.gpu import roofline
from ppdiffusers_tome.tools.bench.gpu.cost import DEVICES, Cost
from ppdiffusers_tome.tools.bench.gpu.estimate import FILE, Estimate, by_strength, estimated, estimates, listed_device
from ppdiffusers_tome.tools.bench.gpu.families import FAMILIES, SIZES
from ppdiffusers_tome.tools.bench.gpu.joint import JointTransformer
from ppdiffusers_tome.tools.bench.gpu.layers import fused_attention
from ppdiffusers_tome.tools.bench.gpu.trace import Operator, _operators, _static_mode
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS

A100, H200 = (device.name for device in DEVICES)
PADDLE_2 = paddle.__version__.startswith("2.")
traced = pytest.mark.skipif(not PADDLE_2, reason="the roofline counts in programs of Paddle 2.6")
# What the denoisers launch beside what merging does.
_MORE_RULES = ("layer_norm", "group_norm", "gelu", "silu", "exp", "cos", "sin", "nearest_interp_v2", "split")


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


@pytest.mark.parametrize(
    ("family", "pixels", "device", "eager", "compiled"),
    [
        ("sd15", 512, A100, 1 / 32, 1 / 51),  # chengzeyi/stable-fast, issue 2
        ("sd35-large", 1024, H200, 11.615 / 50, 7.466 / 50),  # on an H100: microsoft/onnxruntime, pull request 22986
        ("flux", 1024, H200, 12.339 / 50, 8.198 / 50),  # the same
    ],
)
def test_peak_rates_are_a_bound_of_published_times(
    family: str, pixels: int, device: str, eager: float, compiled: float
) -> None:
    """Of PyTorch, unmerged: no GPU is faster, and none so much slower that the estimate had nothing to do with it."""
    estimate = estimated(family, pixels, device)
    assert estimate is not None
    assert estimate.unmerged / 1000 < compiled < eager < 3 * estimate.unmerged / 1000


@pytest.mark.parametrize("family", FAMILIES)
def test_fewer_keys_save_products_and_projections_where_a_preset_merges(family: str) -> None:
    """At 1024x1024 with 3/4 of the keys left out at the finest level, and nothing else."""
    known = FAMILIES[family]
    attentions = known.denoiser.attentions(1024)[0]
    channels, dropped = attentions.channels, 3 * attentions.num_tokens // 4

    def left(level: int, tokens: int) -> int:
        return tokens - (dropped if level == attentions.level else 0)

    before, after = (total(known.denoiser.costs(1024, known.batch, keys)).flops for keys in (all_tokens, left))
    text = getattr(known.denoiser, "text_tokens", 0)
    second = getattr(known.denoiser, "second_attentions", 0)
    queries = attentions.num_tokens * attentions.number + text * (attentions.number - second)
    products = 4 * known.batch * queries * dropped * channels
    projections = attentions.number * 2 * 2 * known.batch * dropped * channels**2
    assert before - after == products + projections


def test_every_family_size_device_and_preset_is_kept() -> None:
    found = {(each.family, each.pixels, each.device): each for each in estimates()}
    assert list(found) == [(name, size, device) for name in FAMILIES for size in SIZES for device in (A100, H200)]
    assert all(set(each.presets) == set(presets()) for each in found.values())


def test_a_preset_that_loses_is_told_below_one() -> None:
    estimate = Estimate("sdxl", 512, H200, 15.0, dict.fromkeys(presets(), 15.5))
    assert estimate.speed_up("fast") == pytest.approx(15 / 15.5)
    losing = [each for each in estimates() if min(map(each.speed_up, presets())) < 0.995]
    assert losing, "no preset loses any more: say so in docs/en/guides/gpu.md"
    assert all(each.pixels == min(SIZES) for each in losing)


def test_presets_stand_from_the_weakest_to_the_strongest() -> None:
    assert by_strength() == ["quality", "balanced", "fast"]


@pytest.mark.parametrize(
    ("gpu", "device"),
    [("NVIDIA A100-SXM4-80GB", A100), ("NVIDIA H200", H200), ("NVIDIA GeForce RTX 4090", A100)],
)
def test_a_gpu_is_compared_with_the_device_of_its_kind(gpu: str, device: str) -> None:
    assert listed_device(gpu) == device


def test_the_page_shows_what_is_kept() -> None:
    page = (tiny.ROOT / "docs" / "en" / "guides" / "gpu.md").read_text(encoding="utf-8")
    assert page.split(script.BEGIN)[1].split(script.END)[0].strip() == script.page()
    assert "not a measurement" in page.split(script.BEGIN)[0]


@traced
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_kept_is_what_the_script_computes(family: str) -> None:
    """Else run: python -m ppdiffusers_tome.tools.bench.gpu.presets --page docs/en/guides/gpu.md"""
    computed = [each for pixels in SIZES for each in script.computed(FAMILIES[family], pixels)]
    kept = [each for each in estimates() if each.family == family]
    assert json.loads(script.written(computed)) == json.loads(script.written(kept))
    assert FILE.read_text(encoding="utf-8") == script.written(estimates())


@traced
def test_a_method_that_is_not_counted_is_refused() -> None:
    with pytest.raises(SystemExit, match="what method='tome' costs in a whole call is not counted"):
        script.merged_costs(FAMILIES["sd15"], 512, ToMeConfig(0.5))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], Cost]]:
    """The cost of what a function records in half precision; attention itself, which is fused, is left out."""
    monkeypatch.setattr(F, "scaled_dot_product_attention_", lambda query, *_, **__: query, raising=False)
    for name in _MORE_RULES:
        monkeypatch.setitem(roofline.RULES, name, roofline._all_in_all_out)
    monkeypatch.setitem(roofline.RULES, "shape", lambda operator: Cost())
    monkeypatch.setitem(roofline.RULES, "conv2d", _convolved)
    before = paddle.get_default_dtype()

    def count(record: Callable[[], Any]) -> Cost:
        main, start = paddle.static.Program(), paddle.static.Program()
        with _static_mode(), paddle.utils.unique_name.guard(), paddle.static.program_guard(main, start):
            paddle.set_default_dtype("float16")
            record()
            return total([roofline.cost_of(operator) for operator in _operators(main.global_block())])

    yield count
    paddle.set_default_dtype(before)


def _convolved(operator: Operator) -> Cost:
    weights = operator.inputs["Filter"]
    flops = 2 * operator.outputs[0].size * weights.size // weights.shape[0]
    return roofline._all_in_all_out(operator) + Cost(0, 0, flops)


def data(*shape: int, dtype: str = "float16") -> Any:
    return paddle.static.data(paddle.utils.unique_name.generate("x"), list(shape), dtype)


def unfused(costs: list[Cost], fused: list[Cost]) -> Cost:
    """Costs without attention itself: the stand-in of the traced programs gives its queries back."""
    all_of_it, left_out = total(costs), total([cost for cost in fused if cost.flops])
    return Cost(
        all_of_it.launches - left_out.launches, all_of_it.num_bytes - left_out.num_bytes,
        all_of_it.flops - left_out.flops,
    )  # fmt: skip


def assert_close(said: Cost, counted: Cost) -> None:
    assert said.flops == pytest.approx(counted.flops, rel=1e-5)
    assert said.launches == pytest.approx(counted.launches, rel=0.05)
    assert said.num_bytes == pytest.approx(counted.num_bytes, rel=0.03)


@traced
@pytest.mark.parametrize("family", ["sd15", pytest.param("sdxl", marks=pytest.mark.sweep)])
def test_unets_launch_move_and_compute_what_ppdiffusers_own_do(
    family: str, counted: Callable[[Callable[[], Any]], Cost]
) -> None:
    import ppdiffusers
    from ppdiffusers.models.attention_processor import AttnProcessor2_5

    batch, side = 2, 64
    # A convolution with one point for a kernel costs what a linear layer does, and traces its shape.
    config = {**RANDOM_UNETS[f"{family}-random"], "use_linear_projection": True}

    def record() -> None:
        unet = ppdiffusers.UNet2DConditionModel(**config)
        unet.eval()
        unet.set_attn_processor(AttnProcessor2_5())
        added = {"text_embeds": data(batch, 1280), "time_ids": data(batch, 6)}
        text = data(batch, 77, config["cross_attention_dim"])
        unet(data(batch, 4, side, side), data(1, dtype="int64"), text, added_cond_kwargs=added)

    known = FAMILIES[family].denoiser
    fused = []
    for each in known.attentions(8 * side):
        for keys in (each.num_tokens, 77):
            fused += each.number * fused_attention(batch, each.num_tokens, keys, each.channels)
    assert_close(unfused(known.costs(8 * side, batch, all_tokens), fused), counted(record))


@traced
@pytest.mark.parametrize("ends", [False, True])
def test_joint_blocks_launch_move_and_compute_what_ppdiffusers_own_do(
    ends: bool, counted: Callable[[Callable[[], Any]], Cost]
) -> None:
    from ppdiffusers.models.attention import JointTransformerBlock

    batch, tokens, text, channels = 2, 32 * 32, 154, 1536

    def record() -> None:
        block = JointTransformerBlock(channels, channels // 64, channels, context_pre_only=ends)
        block.eval()
        states, context = data(batch, tokens, channels), data(batch, text, channels)
        block(hidden_states=states, encoder_hidden_states=context, temb=data(batch, channels))

    def said(blocks: int) -> Cost:
        model = JointTransformer(channels, 64, blocks, text, 2048, normed=False, text_ends=ends)
        fused = blocks * fused_attention(batch, tokens + text, tokens + text, channels)
        return unfused(model.costs(512, batch, all_tokens), fused)

    # Two models that differ by one block: the last of one that ends the text, or one of those before it.
    more, fewer = (said(1), said(0)) if ends else (said(2), said(1))
    one = Cost(more.launches - fewer.launches, more.num_bytes - fewer.num_bytes, more.flops - fewer.flops)
    assert_close(one, counted(record))
