"""Caches over steps that replace the ``forward`` of classes, as PaddleMIX' examples for FLUX do.

Each is a few lines of our own that skip what theirs skip: the whole stack (TeaCache), all behind the first block
(first-block caches, CG-Taylor), or the layers inside of each block (TaylorSeer).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tiny
from newer.families import FLUX, numbers
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.override import list_overrides

# The classes of a model whose ``forward`` is replaced, of FLUX's blocks the first.
CLASSES = {
    "model": lambda model: type(model),
    "dual blocks": lambda model: type(model.transformer_blocks[0]),
    "single blocks": lambda model: type(model.single_transformer_blocks[0]),
}
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


def steps(model: tiny.Model) -> list[np.ndarray]:
    for layer in model.sublayers(include_self=True):
        vars(layer).pop("count", None)
    return [numbers(FLUX, model, timestep=timestep) for timestep in TIMESTEPS]


@pytest.mark.parametrize("tome_first", [True, False])
@pytest.mark.parametrize("name", CLASSES)
def test_merging_works_beside_it(name: str, tome_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = steps(apply_tome(FLUX.build(), 0.5))
    model = FLUX.build()
    if tome_first:
        apply_tome(model, 0.5)
    cache_every_second_call(monkeypatch, CLASSES[name](model))
    alone = steps(FLUX.build())
    if not tome_first:
        apply_tome(model, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached = steps(model)
    # Computed steps are those of merging alone, the others are those of neither alone.
    assert list(map(np.array_equal, cached, merged)) == [True, False, True, False]
    assert not any(map(np.array_equal, cached, alone))
    assert all(map(np.array_equal, steps(remove_tome(model)), alone))
    assert not [each for layer in model.sublayers(include_self=True) for each in list_overrides(layer)]
