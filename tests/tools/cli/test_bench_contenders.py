"""The contenders of ``bench unet`` and ``pipeline``: who they are, what they see, that they leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig, applied_tome
from ppdiffusers_tome.patching import apply
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.bench import workload
from ppdiffusers_tome.tools.bench.contenders import CONTENDERS, put_on, take_off
from ppdiffusers_tome.tools.bench.plan import Plan, Setting, Variant
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS, random_unet
from ppdiffusers_tome.tools.bench.task import Task, carry_out
from ppdiffusers_tome.tools.bench.workload import Workload, load_workload

PLAN = Plan(
    what="unet", model="sd15-tiny-random", dtype="float32", steps=4, contenders=tuple(CONTENDERS), ratios=(0.5, 0.7),
    max_downsample=None, seed=0, guidance_scale=None, sizes=(128,), batches=(2,), attentions=("plain",), repeats=2,
    memory=False,
)  # fmt: skip
SETTING = PLAN.settings[0]
TOKENS = 16 * 16
UNMERGED = ("none", "ratio-0", "removed")
# Those that have exactly as many keys fewer as the ratio says; pools are of whole cells.
EXACT = ("port", "ours", "ours-tile", "ours-fast", "ours-keys", "ours-todo", "free")


def _in_cells(ratio: float) -> int:
    """How many keys are fewer where cells of four are pooled, as many of the 64 as the ratio says."""
    return 3 * round(64 * int(TOKENS * ratio) / (TOKENS - 64))


# Keys of self-attention at the two finest levels.
EXPECTED = {
    **dict.fromkeys(UNMERGED, (TOKENS, TOKENS // 4)),
    "preset-balanced": (TOKENS - int(TOKENS * 8 / 9), TOKENS // 4), "preset-fast": (TOKENS // 16, TOKENS // 64),
    "preset-quality": (TOKENS // 4, TOKENS // 4),
    **{
        f"{name} {ratio}": (TOKENS - (_in_cells(ratio) if name == "ours-pool" else int(TOKENS * ratio)), TOKENS // 4)
        for ratio in PLAN.ratios
        for name in (*EXACT, "ours-pool")
    },
}  # fmt: skip


@pytest.fixture
def unet() -> Any:
    return random_unet("sd15-tiny-random")


@pytest.fixture
def seen(unet: Any) -> Iterator[dict[int, set[int]]]:
    """How many keys self-attention got, by level; a run adds to it."""
    tokens: dict[int, set[int]] = {}
    for site in find_blocks(unet):
        site.block.attn1.to_k.register_forward_post_hook(
            lambda layer, inputs, output, level=site.level: _add(tokens, level, output.shape[1])
        )
    return tokens


def _add(tokens: dict[int, set[int]], level: int, number: int) -> None:
    tokens.setdefault(level, set()).add(number)


def run(unet: Any) -> np.ndarray:
    with paddle.no_grad():
        return unet(tiny.latent(2, 16, 16), 500, tiny.array((2, 7, 32), seed=2)).sample.numpy()


def who(unet: Any) -> str:
    """Which contender is on a model, told by what it leaves there."""
    applied = applied_tome(unet)
    if applied is not None:
        preset = next((name for name in presets() if applied.config == ToMeConfig.preset(name)), None)
        if preset is not None:
            return f"preset-{preset}"
        settings = {
            "ours": {}, "ours-tile": {"tile": 16}, "ours-fast": {"tile": 16, "reuse_steps": 4, "reuse_blocks": True},
            **{f"ours-{method}": {"method": method} for method in ("keys", "pool", "todo")},
        }  # fmt: skip
        ratio = applied.config.ratio
        name = next(name for name, given in settings.items() if applied.config == ToMeConfig(ratio=ratio, **given))
        return "ratio-0" if applied.config.ratio == 0 else f"{name} {applied.config.ratio}"
    if any(type(site.block).__name__.startswith("ToMe") for site in find_blocks(unet)):
        return f"port {unet._tome_info['args']['ratio']}"
    hooks = [hook for site in find_blocks(unet) for hook in site.block.attn1._forward_post_hooks.values()]
    return f"free {hooks[0].__self__._ratio}" if hooks else "none or removed"


def test_variants_are_all_contenders_at_all_ratios() -> None:
    assert sorted(variant.name for variant in PLAN.variants) == sorted(EXPECTED)


@pytest.mark.parametrize("variant", PLAN.variants, ids=lambda variant: variant.name)
def test_attention_sees_a_contenders_tokens(variant: Variant, unet: Any, seen: dict[int, set[int]]) -> None:
    put_on(unet, variant.contender, variant.ratio, None)
    output = run(unet)
    finest, second = EXPECTED[variant.name]
    assert seen == {1: {finest}, 2: {second}, 4: {16}, 8: {4}}
    assert who(unet) == ("none or removed" if variant.name in ("none", "removed") else variant.name)
    assert np.isfinite(output).all()


def test_contenders_draw_what_they_should(unet: Any) -> None:
    plain, outputs = run(unet), {}
    for variant in PLAN.variants:
        put_on(unet, variant.contender, variant.ratio, None)
        outputs[variant.name] = run(unet)
    for name in UNMERGED:
        np.testing.assert_array_equal(outputs.pop(name), plain)
    for name, output in outputs.items():
        assert np.abs(output - plain).max() > 1e-4, name


def test_contender_replaces_another_and_leaves_nothing_behind(unet: Any) -> None:
    run(unet)
    before = tiny.snapshot(unet)
    for variant in PLAN.variants:
        put_on(unet, variant.contender, variant.ratio, 2)
        run(unet)
    take_off(unet)
    assert tiny.snapshot(unet) == before


def test_removed_was_applied_before(unet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[float] = []
    monkeypatch.setattr(apply, "attach", lambda model, sites, config: applied.append(config.ratio))
    for name in ("none", "removed", "ratio-0"):
        put_on(unet, name, None, None)
    assert applied == [0.5, 0]


def test_levels_are_those_of_the_setting(unet: Any, seen: dict[int, set[int]]) -> None:
    for name in EXACT:
        seen.clear()
        put_on(unet, name, 0.5, 2)
        run(unet)
        assert seen == {1: {128}, 2: {32}, 4: {16}, 8: {4}}, name


def test_model_without_attention_at_its_finest_level_is_compared_at_the_same_level() -> None:
    model = tiny.sdxl_unet()
    widths: list[int] = []
    for site in find_blocks(model):
        site.block.attn1.to_k.register_forward_post_hook(lambda _, inputs, output: widths.append(output.shape[1]))
    for name in EXACT:
        widths.clear()
        put_on(model, name, 0.5, None)
        tiny.run_unet(model)
        assert set(widths) == {32}, name


def test_contenders_reach_the_unet_of_a_pipeline() -> None:
    pipe = tiny.pipeline()
    before = [tiny.snapshot(layer) for layer in (pipe.unet, pipe.vae, pipe.text_encoder)]
    for variant in PLAN.variants:
        put_on(pipe, variant.contender, variant.ratio, None)
        assert who(pipe.unet) == ("none or removed" if variant.name in ("none", "removed") else variant.name)
    take_off(pipe)
    assert [tiny.snapshot(layer) for layer in (pipe.unet, pipe.vae, pipe.text_encoder)] == before


def test_every_run_is_given_the_same_inputs() -> None:
    loaded = load_workload(PLAN, SETTING)
    given: list[list[np.ndarray]] = []
    loaded.model_or_pipe.register_forward_pre_hook(lambda layer, inputs: given.append([x.numpy() for x in inputs]))
    loaded.run(4)
    loaded.run(4)
    assert [int(timestep) for _, timestep, _ in given[:4]] == [999, 749, 499, 249]
    assert len({latent.tobytes() for latent, _, _ in given[:4]}) == 4
    assert given[0][0].shape == (2, 4, 16, 16)
    for first, second in zip(given[:4], given[4:], strict=True):
        for before, after in zip(first, second, strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.sweep
def test_contenders_take_turns_and_another_begins_each_round(unet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []
    chosen = Workload(unet, lambda steps: ran.append((who(unet), steps)), 4)
    monkeypatch.setattr(workload, "load_workload", lambda plan, setting: chosen)
    variants = PLAN.variants
    results = list(carry_out(Task(PLAN, SETTING, tuple(variants), (0, 3))))
    names = [variant.name if variant.name not in ("none", "removed") else "none or removed" for variant in variants]
    turns = names + [name for first in (0, 3) for name in names[first:] + names[:first]]
    assert ran == [(name, 1 if number < len(names) else 4) for number, name in enumerate(turns)]
    rounds = [line for line in results if "round" in line]
    assert [line["round"] for line in rounds] == [0, 3]
    assert all(list(line["seconds"]) == list(EXPECTED) for line in rounds)
    assert results[0]["on"]["paddle"] == paddle.__version__


@pytest.mark.parametrize("name", ["plain", "chunked"])
def test_attention_is_computed_as_asked(name: str) -> None:
    loaded = load_workload(PLAN, Setting(128, 2, name))
    processors = {type(site.block.attn1.processor).__name__ for site in find_blocks(loaded.model_or_pipe)}
    assert processors == {"AttnProcessor" if name == "plain" else "ChunkedAttnProcessor"}
    loaded.run(1)


def test_random_unet_is_the_same_every_time_and_of_a_usual_scale() -> None:
    first, second = random_unet("sd15-tiny-random"), random_unet("sd15-tiny-random")
    for (name, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        if a.ndim == 2:
            assert float(a.std()) * a.shape[0] ** 0.5 == pytest.approx(1, rel=0.3), name
        if a.ndim == 4:
            assert float(a.std()) * np.prod(a.shape[1:]) ** 0.5 == pytest.approx(1, rel=0.3), name
    assert 0.1 < run(first).std() < 10
    assert float(paddle.nn.Linear(4, 4).weight.abs().sum()) > 0  # Paddle's initialiser is back
    assert RANDOM_UNETS["sd15-random"]["block_out_channels"] == (320, 640, 1280, 1280)
