"""Caches over steps that replace the ``forward`` of classes, as PaddleMIX' examples do.

Each is a few lines of our own that skip what theirs skip: the whole model (TeaCache), all behind the first block
(first-block caches, CG-Taylor), or the layers inside of each block (TaylorSeer).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ppdiffusers import Transformer2DModel
from ppdiffusers.models.attention import BasicTransformerBlock

import tiny
from future_models.stand_ins import FAMILIES, FluxTransformer2DModel
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.layer_class import list_overrides
from zoo.specimen import Inputs


def skip_every_second(own: Callable[..., Any], behind_the_first: bool = False) -> Callable[..., Any]:
    """A ``forward`` that in every second call hands out what it returned before."""

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if behind_the_first and self.is_first:
            return own(self, *inputs, **keywords)
        self.count = getattr(self, "count", -1) + 1
        if self.count % 2 == 0:
            self.kept = own(self, *inputs, **keywords)
        return self.kept

    return forward


CACHES: dict[str, tuple[type, bool]] = {
    "whole model": (Transformer2DModel, False), "behind the first block": (BasicTransformerBlock, True),
    "inside of blocks": (BasicTransformerBlock, False),
}  # fmt: skip


def build() -> tiny.Model:
    model = tiny.dit(num_layers=3)
    for number, block in enumerate(model.transformer_blocks):
        block.is_first = number == 0
    return model


def steps(model: tiny.Model) -> list[np.ndarray]:
    return [tiny.run_dit(model, timestep=timestep) for timestep in (900, 700, 500, 300)]


@pytest.mark.parametrize("tome_first", [True, False])
@pytest.mark.parametrize("name", CACHES)
def test_merging_works_beside_it(name: str, tome_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    merged, model = steps(apply_tome(build(), 0.5)), build()
    if tome_first:
        apply_tome(model, 0.5)
    cls, behind_the_first = CACHES[name]
    monkeypatch.setattr(cls, "forward", skip_every_second(cls.forward, behind_the_first))
    alone = steps(build())
    if not tome_first:
        apply_tome(model, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached = steps(model)
    # Computed steps are those of merging alone, the others are those of neither alone.
    assert [np.array_equal(*pair) for pair in zip(cached, merged, strict=True)] == [True, False, True, False]
    assert not any(np.array_equal(*pair) for pair in zip(cached, alone, strict=True))
    assert np.isfinite(cached).all()
    assert all(map(np.array_equal, steps(remove_tome(model)), alone))
    assert not [each for layer in model.sublayers(include_self=True) for each in list_overrides(layer)]


def test_matchings_are_reused_beside_tensors_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are in the arguments of the call and differ in every step, and are no conditioning."""
    own = FluxTransformer2DModel.forward

    def forward(self: Any, *inputs: Any, joint_attention_kwargs: Any, **keywords: Any) -> Any:
        output = own(self, *inputs, **keywords)
        joint_attention_kwargs["cache_dic"] = {"cache": {0: {"hidden": output[0]}}}
        return output

    flux, given = FAMILIES["flux"], dict[str, Any]()
    model = apply_tome(flux.build(), 0.5, reuse_steps=4)
    monkeypatch.setattr(FluxTransformer2DModel, "forward", forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for timestep in range(900, 200, -100):
            flux.run(model, Inputs(timestep=timestep), joint_attention_kwargs=given)
