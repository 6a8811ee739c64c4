"""Caches over steps that replace the ``forward`` of classes, as PaddleMIX' examples for FLUX do, on stand-ins.

Each is a few lines of our own that skip what theirs skip: the whole stack (TeaCache), all behind the first block
(first-block caches, CG-Taylor), or the layers inside of each block (TaylorSeer).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from future_models.stand_ins import (
    FAMILIES,
    FluxSingleTransformerBlock,
    FluxTransformer2DModel,
    FluxTransformerBlock,
    Model,
)
from future_models.test_stand_ins import same
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.override import list_overrides
from zoo.specimen import Inputs

FLUX = FAMILIES["flux"]
TIMESTEPS = (900, 700, 500, 300)  # every second one is skipped


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


def steps(model: Model) -> list[list[np.ndarray]]:
    for layer in model.sublayers(include_self=True):
        vars(layer).pop("count", None)
    return [FLUX.run(model, Inputs(timestep=timestep)) for timestep in TIMESTEPS]


@pytest.mark.parametrize("tome_first", [True, False])
@pytest.mark.parametrize("cls", [FluxTransformer2DModel, FluxTransformerBlock, FluxSingleTransformerBlock])
def test_merging_works_beside_it(cls: type, tome_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = steps(apply_tome(FLUX.build(dual=2), 0.5))
    model = FLUX.build(dual=2)
    if tome_first:
        apply_tome(model, 0.5)
    cache_every_second_call(monkeypatch, cls)
    alone = steps(FLUX.build(dual=2))
    if not tome_first:
        apply_tome(model, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached = steps(model)
    # Computed steps are those of merging alone, the others are those of neither alone.
    assert [same(*pair) for pair in zip(cached, merged, strict=True)] == [True, False, True, False]
    assert not any(same(*pair) for pair in zip(cached, alone, strict=True))
    assert all(map(same, steps(remove_tome(model)), alone))
    assert not [each for layer in model.sublayers(include_self=True) for each in list_overrides(layer)]
