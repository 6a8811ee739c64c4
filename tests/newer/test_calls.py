"""What a call of the newest families tells, and where merging steps back."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Layer

from newer.families import FAMILIES, FLUX, ROTARY, STAND_IN, arguments, attentions, change, numbers
from newer.stand_in import Processor
from patching.helpers import EverySecond
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.override import list_overrides
from ppdiffusers_tome.tools.recorder import record_merging
from zoo.specimen import Inputs

METHODS = ("tome", "todo", "keys")


@contextmanager
def check_single_warning(about: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    assert len([each for each in told if about in str(each.message)]) == 1, [str(each.message) for each in told]


class Kernels:
    """Attention as a processor with kernels of its own sees it: of some layers nothing runs that ToMe put on them."""

    def __init__(self, attention: Any, names: tuple[str, ...]) -> None:
        self.attention, self.names = attention, names

    def __getattr__(self, name: str) -> Any:
        layer = getattr(self.attention, name)
        return partial(type(layer).forward, layer) if name in self.names and layer is not None else layer


def fuse(model: Layer, *names: str) -> Layer:
    """Have processors compute what they do without calling these layers."""
    for attention in attentions(model):
        compute = type(attention.processor).__call__

        @functools.wraps(compute)
        def call(self: Any, attention: Any, *inputs: Any, compute: Any = compute, **keywords: Any) -> Any:
            return compute(self, Kernels(attention, names), *inputs, **keywords)

        attention.processor = type("Fused", (type(attention.processor),), {"__call__": call})()
    return model


KEYS, TEXT_NORMS = ("to_k", "to_v"), ("norm_added_q", "norm_added_k")
NORMS = ("norm_q", "norm_k", *TEXT_NORMS)
ALL = (*KEYS, *NORMS, "to_q", "add_q_proj", "add_k_proj", "add_v_proj")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("has_norms", [False, True], ids=["no norms", "a processor goes round the norms"])
def test_attention_whose_norms_are_not_called_runs_unmerged(has_norms: bool, name: str, method: str) -> None:
    """Positions are put on tokens that are left where the norms' outputs come out."""
    specimen = FAMILIES[name]
    model = fuse(specimen.build(), *NORMS)
    if not has_norms:
        for attention in attentions(model):
            attention.norm_q = attention.norm_k = None
    plain = numbers(specimen, model)
    apply_tome(model, 0.5, method=method)
    calls: list[Any] = []
    for attention in attentions(model):
        attention.to_q.register_forward_pre_hook(lambda *call: calls.append(call))
    with check_single_warning("does not call norm_"):
        for times in (2, 1):  # what was computed before it was found out is computed again; from then on it is known
            calls.clear()
            assert np.array_equal(numbers(specimen, model), plain)
            assert len(calls) == times * len(attentions(model))


FUSED = [
    *[(name, ALL, "tome") for name in ROTARY],
    # HunyuanVideo's attention gets a mask, which was made for fewer keys already.
    *[(name, names, "todo") for name in ROTARY if name != "hunyuan_video" for names in (ALL, KEYS)],
    *[("flux", TEXT_NORMS, method) for method in METHODS],
]


@pytest.mark.parametrize(("name", "names", "method"), FUSED)
def test_a_processor_with_fused_layers_runs_unmerged(name: str, names: tuple[str, ...], method: str) -> None:
    specimen = FAMILIES[name]
    # FLUX's single blocks norm a text as they norm the image.
    model = specimen.build(**(dict(num_single_layers=0) if names == TEXT_NORMS else {}))
    expected = numbers(specimen, model)
    apply_tome(fuse(model, *names), 0.5, method=method)
    with check_single_warning("Fused, or a function in place of its forward, does not call "):
        assert np.array_equal(numbers(specimen, model), expected)
        assert np.array_equal(numbers(specimen, model), expected)


@pytest.mark.parametrize("settings", [dict(ratio=0.5), dict(ratio=0.5, method="todo")], ids=str)
def test_norms_may_get_heads_after_tokens(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """``[batch, tokens, heads, channels]``, as Mochi's do."""
    expected = numbers(STAND_IN, apply_tome(STAND_IN.build(), **settings))

    def heads(attn: Any, x: paddle.Tensor, norm: Any = None) -> paddle.Tensor:
        x = x.reshape([0, 0, attn.heads, -1])
        return (x if norm is None else norm(x)).transpose([0, 2, 1, 3])

    monkeypatch.setattr(Processor, "heads", staticmethod(heads))
    assert change(numbers(STAND_IN, apply_tome(STAND_IN.build(), **settings)), expected) <= 1e-6


def test_positions_may_be_given_for_every_image() -> None:
    """FLUX takes those of the first."""
    model, ids = apply_tome(FLUX.build(), 0.5), arguments(FLUX, Inputs())[1]["img_ids"]
    for_all = dict(img_ids=paddle.stack([ids, ids + 7]))
    assert np.array_equal(numbers(FLUX, model, for_all), numbers(FLUX, model))


def test_positions_that_are_no_grid_run_unmerged() -> None:
    """Such as those of two images side by side, or column by column."""
    model, rows = FLUX.build(), arguments(FLUX, Inputs())[1]["img_ids"]
    for ids in (paddle.concat([rows[:32], rows[:32]]), rows.flip(0), rows[:, [0, 2, 1]]):
        plain = numbers(FLUX, remove_tome(model), dict(img_ids=ids))
        apply_tome(model, 0.5)
        with check_single_warning("do not describe a grid of tokens"):
            assert np.array_equal(numbers(FLUX, model, dict(img_ids=ids)), plain)
            assert np.array_equal(numbers(FLUX, model, dict(img_ids=ids.clone())), plain)
        assert not np.array_equal(numbers(FLUX, model), numbers(FLUX, remove_tome(model)))


def test_positions_are_read_once_while_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each reading waits for all that was computed before."""
    model, read = apply_tome(FLUX.build(), 0.5), []
    usual, numpy = arguments(FLUX, Inputs())[1], paddle.Tensor.numpy
    ids, text = usual["img_ids"], dict(txt_ids=usual["txt_ids"])

    def counting(tensor: paddle.Tensor) -> np.ndarray:
        if tensor.shape == ids.shape:
            read.append(tensor)
        return numpy(tensor)

    monkeypatch.setattr(paddle.Tensor, "numpy", counting)

    def times(ids: paddle.Tensor = ids) -> int:
        read.clear()
        numbers(FLUX, model, {**text, "img_ids": ids})
        return len(read)

    once = times()
    assert once >= 1
    assert [times(), times(), times()] == [0, 0, 0]
    assert [times(ids.clone()), times(), times()] == [once, once, 0]
    ids.scale_(1.0)
    assert [times(), times()] == [once, 0]


def test_the_guidance_that_is_embedded_like_a_timestep_is_none() -> None:
    """It comes second; a ratio that falls with the denoising would else stay what it is at the beginning."""
    model = apply_tome(FLUX.build(num_layers=1, num_single_layers=0), (0.7, 0.1))
    with record_merging(model) as records:
        for timestep in (900, 100):
            numbers(FLUX, model, timestep=timestep)
    assert [record.timestep for record in records] == pytest.approx([900, 100])
    assert [record.num_merged / 64 for record in records] == pytest.approx([0.64, 0.16], abs=1 / 64)


def steps(model: Layer) -> list[np.ndarray]:
    for layer in model.sublayers(include_self=True):
        vars(layer).pop("count", None)
    return [numbers(FLUX, model, timestep=timestep) for timestep in (900, 200, 800, 300)]


@pytest.mark.parametrize("settings", [dict(end=0.5), dict(start=0.5), dict(method="todo")], ids=str)
def test_a_cache_around_attention_hands_out_all_tokens(settings: dict[str, Any]) -> None:
    """Such as Pyramid Attention Broadcast's: every second step gets what attention gave before, merged or not."""
    model = apply_tome(FLUX.build(), 0.5, **settings)
    computed = steps(model)
    for attention in attentions(model):
        EverySecond.put_on(attention)
    assert list(map(np.array_equal, steps(model), computed)) == [True, False, True, False]
    # The cache stays when ToMe goes.
    assert list(map(np.array_equal, steps(remove_tome(model)), steps(FLUX.build()))) == [True, False, True, False]


# Caches over steps that replace the ``forward`` of classes, as PaddleMIX' examples for FLUX do. Each is a few lines of
# our own that skip what theirs skip: the whole stack (TeaCache), all behind the first block (first-block caches,
# CG-Taylor), or the layers inside of each block (TaylorSeer).
CLASSES = {
    "model": lambda model: type(model),
    "dual blocks": lambda model: type(model.transformer_blocks[0]),
    "single blocks": lambda model: type(model.single_transformer_blocks[0]),
}


def cache_every_second_call(monkeypatch: pytest.MonkeyPatch, cls: type) -> None:
    """Let the layers of a class return what they returned in the call before, in every second call."""
    compute = cls.forward

    def forward(self: Any, *inputs: Any, joint_attention_kwargs: Any = None, **keywords: Any) -> Any:
        self.count = getattr(self, "count", -1) + 1
        if self.count % 2 == 0:
            self.kept = compute(self, *inputs, **keywords)
        if joint_attention_kwargs is not None:  # as theirs, whose features are in the arguments of the call
            joint_attention_kwargs["cache_dic"] = {"cache": {0: {"hidden": self.kept[0]}}}
        return self.kept

    monkeypatch.setattr(cls, "forward", forward)


@pytest.mark.filterwarnings("error:ToMe")
@pytest.mark.parametrize("tome_first", [True, False])
@pytest.mark.parametrize("name", CLASSES)
def test_merging_works_beside_a_cache_over_steps(name: str, tome_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = steps(apply_tome(FLUX.build(), 0.5))
    model = FLUX.build()
    if tome_first:
        apply_tome(model, 0.5)
    cache_every_second_call(monkeypatch, CLASSES[name](model))
    alone = steps(FLUX.build())
    if not tome_first:
        apply_tome(model, 0.5)
    cached = steps(model)
    # Computed steps are those of merging alone, the others are those of neither alone.
    assert list(map(np.array_equal, cached, merged)) == [True, False, True, False]
    assert not any(map(np.array_equal, cached, alone))
    assert all(map(np.array_equal, steps(remove_tome(model)), alone))
    assert not [each for layer in model.sublayers(include_self=True) for each in list_overrides(layer)]
