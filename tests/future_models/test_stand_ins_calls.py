"""What a call of the families of a newer ppdiffusers tells, and where merging steps back, on stand-ins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import tiny
from future_models.stand_ins import FAMILIES, HEADS, Model, Norm, Processor
from future_models.test_stand_ins import attentions, change, same
from patching.contract import EverySecond
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.tools.recorder import record_merging
from zoo.specimen import Inputs, create

FLUX = FAMILIES["flux"]


@contextmanager
def check_single_warning(about: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    assert len([each for each in told if about in str(each.message)]) == 1, [str(each.message) for each in told]


def set_processors(model: Model, kind: Callable[[], Processor]) -> Model:
    for attention in attentions(model):
        attention.processor = kind()
    return model


@contextmanager
def calls_of_attention(model: Model) -> Iterator[list[Any]]:
    calls: list[Any] = []
    helpers = [each.to_q.register_forward_pre_hook(lambda *call: calls.append(call)) for each in attentions(model)]
    yield calls
    for helper in helpers:
        helper.remove()


class Numbers:
    """Attention whose layers with these names give their numbers alone: nothing of ToMe runs."""

    def __init__(self, attention: Any, names: Sequence[str]) -> None:
        self.attention, self.names = attention, names

    def __getattr__(self, name: str) -> Any:
        layer = getattr(self.attention, name)
        return partial(type(layer).forward, layer) if name in self.names and layer is not None else layer


class Fused(Processor):
    """One kernel for some of what is done before attention itself."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, attention: Any, *inputs: Any, **keywords: Any) -> Any:
        return super().__call__(Numbers(attention, self.names), *inputs, **keywords)


KEYS, TEXT_NORMS = ("to_k", "to_v"), ("norm_added_q", "norm_added_k")
NORMS = (*TEXT_NORMS, "norm_q", "norm_k")
ALL = (*KEYS, *NORMS, "to_q", "add_q_proj", "add_k_proj", "add_v_proj")


@pytest.mark.parametrize("method", ["tome", "todo", "keys"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("has_norms", [False, True], ids=["no norms", "a processor goes round the norms"])
def test_attention_whose_norms_are_not_called_runs_unmerged(has_norms: bool, name: str, method: str) -> None:
    family = FAMILIES[name]
    model = set_processors(family.build(norms=has_norms), lambda: Fused(*NORMS))
    plain = family.run(model)
    apply_tome(model, 0.5, method=method)
    counts = []
    with check_single_warning("does not call norm_"):
        for _ in range(2):
            with calls_of_attention(model) as calls:
                assert same(family.run(model), plain)
            counts.append(len(calls) // len(list(attentions(model))))
    # What was computed before it was found out is computed again; from then on it is known.
    assert counts == [2, 1]
    if has_norms:
        assert not same(family.run(set_processors(model, Processor)), plain)
        assert same(family.run(set_processors(model, lambda: Fused(*NORMS))), plain)


FUSED = [
    *[(name, ALL, "tome") for name in FAMILIES],
    # HunyuanVideo's attention gets a mask, which was made for fewer keys already.
    *[(name, names, "todo") for name in FAMILIES if name != "hunyuan_video" for names in (ALL, KEYS)],
    *[("flux", TEXT_NORMS, method) for method in ("tome", "todo", "keys")],
]


@pytest.mark.parametrize(("name", "names", "method"), FUSED)
def test_a_processor_with_fused_layers_runs_unmerged(name: str, names: tuple[str, ...], method: str) -> None:
    family = FAMILIES[name]
    # FLUX's single blocks norm a text as they norm the image.
    model = family.build(**(dict(dual=2, single=0) if names == TEXT_NORMS else {}))
    expected = family.run(model)
    assert same(family.run(set_processors(model, lambda: Fused(*names))), expected)
    apply_tome(model, 0.5, method=method)
    with check_single_warning("Fused, or a function in place of its forward, does not call "):
        assert same(family.run(model), expected)
        assert same(family.run(model), expected)


class PaddlesLayout(Processor):
    """Norms get ``[batch, tokens, heads, channels]``, as Paddle's own attention takes queries and keys."""

    def heads(self, attention: Any, x: paddle.Tensor, norm: Any = None) -> paddle.Tensor:
        if attention.across_heads:
            return super().heads(attention, x, norm)
        x = x.reshape([0, 0, HEADS, -1])
        return (x if norm is None else norm(x)).transpose([0, 2, 1, 3])


class ReturnsAList(Processor):
    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        made = super().__call__(*inputs, **keywords)
        return list(made) if isinstance(made, tuple) else made


@pytest.mark.parametrize("settings", [dict(ratio=0.5), dict(ratio=0.5, method="todo"), dict(ratio=0)], ids=str)
@pytest.mark.parametrize("kind", [PaddlesLayout, ReturnsAList])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_processor_has_layouts_of_its_own(name: str, kind: type[Processor], settings: dict[str, Any]) -> None:
    family = FAMILIES[name]
    expected = family.run(apply_tome(family.build(), **settings))
    assert change(family.run(apply_tome(set_processors(family.build(), kind), **settings)), expected) <= 1e-6


def test_positions_may_be_given_for_every_image() -> None:
    """FLUX takes those of the first."""
    model, given = FLUX.build(), FLUX.arguments(Inputs())
    ids = given["img_ids"]
    for_all = paddle.stack([ids, ids + 7])
    forward = type(model).forward

    def first_of(self: Any, *inputs: Any, img_ids: paddle.Tensor, **keywords: Any) -> Any:
        return forward(self, *inputs, img_ids=img_ids[0], **keywords)

    expected = FLUX.run(apply_tome(model, 0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "forward", first_of)
        assert same(FLUX.run(apply_tome(model, 0.5), img_ids=for_all), expected)


def test_a_norm_that_is_called_by_keyword_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is where a block's tokens are seen first."""
    expected = FLUX.run(apply_tome(FLUX.build(), 0.5))

    def call_by_keyword(self: Any, hidden_states: paddle.Tensor, **keywords: Any) -> Any:
        return nn.Layer.__call__(self, hidden_states=hidden_states, **keywords)

    monkeypatch.setattr(Norm, "__call__", call_by_keyword, raising=False)
    assert same(FLUX.run(apply_tome(FLUX.build(), 0.5)), expected)


class Controlled(FAMILIES["cogvideox"].model_class):  # type: ignore[misc]
    """Takes what a ControlNet of a transformer adds to its blocks: tokens, other ones in every step."""

    def forward(self, *inputs: Any, block_vctrl_residuals: Any = None, **keywords: Any) -> Any:
        return super().forward(*inputs, **keywords)


def test_what_a_controlnet_adds_keeps_no_step_from_taking_matchings_over() -> None:
    family = FAMILIES["cogvideox"]
    model = apply_tome(create(Controlled), 0.5, reuse_steps=2, use_rand=True)

    def run(model: Any, number: int, timestep: float) -> np.ndarray:
        residuals = [tiny.array((2, 64, 4), seed=number)]
        with record_merging(model) as records:
            family.run(model, Inputs(timestep=int(timestep)), block_vctrl_residuals=residuals)
        return records[-1].groups

    owners = tiny.Sampler(model, tiny.scheduler())(run, steps=5)
    assert [np.array_equal(one, other) for one, other in pairwise(owners)] == [True, False, True, False]


def test_positions_that_are_no_grid_run_unmerged() -> None:
    """Such as those of two images side by side, or column by column."""
    model, given = FLUX.build(), FLUX.arguments(Inputs())
    rows = given["img_ids"]
    for ids in (paddle.concat([rows[:32], rows[:32]]), rows.flip(0), rows[:, [0, 2, 1]]):
        plain = FLUX.run(remove_tome(model), img_ids=ids)
        apply_tome(model, 0.5)
        with check_single_warning("do not describe a grid of tokens"):
            assert same(FLUX.run(model, img_ids=ids), plain)
            assert same(FLUX.run(model, img_ids=ids.clone()), plain)
        assert not same(FLUX.run(model, img_ids=rows), FLUX.run(remove_tome(model), img_ids=rows))


def test_positions_are_read_once_while_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given, read = apply_tome(FLUX.build(), 0.5), FLUX.arguments(Inputs()), []
    ids, numpy = given["img_ids"], paddle.Tensor.numpy

    def counting(tensor: paddle.Tensor) -> np.ndarray:
        if tensor.shape == ids.shape:
            read.append(tensor)
        return numpy(tensor)

    monkeypatch.setattr(paddle.Tensor, "numpy", counting)

    def times(**changes: Any) -> int:
        read.clear()
        FLUX.run(model, **{"img_ids": ids, "txt_ids": given["txt_ids"], **changes})
        return len(read)

    once = times()
    assert once >= 1
    assert [times(), times(), times()] == [0, 0, 0]
    assert [times(img_ids=ids.clone()), times(), times()] == [once, once, 0]
    ids.scale_(1.0)
    assert [times(), times()] == [once, 0]


def test_the_guidance_that_is_embedded_like_a_timestep_is_none() -> None:
    """It comes second; a ratio that falls with the denoising would else stay what it is at the beginning."""
    model = apply_tome(FLUX.build(), (0.7, 0.1))
    merged = []
    with record_merging(model) as records:
        for timestep in (900, 100):
            FLUX.run(model, Inputs(timestep=timestep))
            merged.append(records[-1].num_merged / 64)
    assert [record.timestep for record in records] == pytest.approx([900, 900, 100, 100])
    assert merged == pytest.approx([0.64, 0.16], abs=1 / 64)


@pytest.mark.parametrize("settings", [dict(end=0.5), dict(start=0.5), dict(method="todo")], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_cache_around_attention_hands_out_all_tokens(name: str, settings: dict[str, Any]) -> None:
    """Such as Pyramid Attention Broadcast's: every second step gets what attention gave before, merged or not."""
    family = FAMILIES[name]

    def steps(model: Model) -> list[list[np.ndarray]]:
        return [family.run(model, Inputs(timestep=timestep)) for timestep in (900, 200, 800, 300)]

    model = apply_tome(family.build(), 0.5, **settings)
    computed = steps(model)
    for attention in attentions(model):
        EverySecond.put_on(attention)
    cached = steps(model)
    assert list(map(same, cached, computed)) == [True, False, True, False]
    assert all(np.isfinite(each).all() for step in cached for each in step)
    # The cache stays when ToMe goes.
    assert list(map(same, steps(remove_tome(model)), steps(family.build()))) == [True, False, True, False]
