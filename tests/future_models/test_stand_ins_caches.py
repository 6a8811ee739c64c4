"""Caches that hand out again what a layer returned in an earlier step, on stand-ins.

So does Pyramid Attention Broadcast with attention: it puts a ``forward`` of its own around ToMe's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import paddle
import pytest

from future_models.stand_ins import FAMILIES, Attention, Family, FeedForward, Model, Processor, RoundTheNorms
from future_models.test_stand_ins import attentions, blocks, case, same, set_processors
from patching.contract import EverySecond
from ppdiffusers_tome import apply_tome, remove_tome
from zoo.specimen import Inputs

# How far the denoising is: at first hardly, then nearly through; two denoisings.
TIMESTEPS = (900, 200, 800, 300)


def list_layers_to_cache(model: Model) -> list[tuple[Any, str, Any]]:
    return [
        (block, name, layer)
        for block in blocks(model)
        for name, layer in block.named_children()
        if isinstance(layer, Attention | FeedForward)
    ]


def add_caches(model: Model, layers: Iterable[Any] = ()) -> Model:
    for layer in layers or [layer for _, _, layer in list_layers_to_cache(model)]:
        EverySecond.put_on(layer)
    return model


def add_caches_around(model: Model) -> Model:
    """A cache that keeps what blocks get: unmerged already, if anything merged."""
    for block, name, layer in list_layers_to_cache(model):
        setattr(block, name, EverySecond(layer))
    return model


def steps(family: Family, model: Model) -> list[list[np.ndarray]]:
    return [family.run(model, Inputs(timestep=timestep)) for timestep in TIMESTEPS]


SETTINGS = {
    "other destinations": dict(ratio=0.5),
    "other numbers": dict(ratio=(0.7, 0.1)),
    "kept merged": dict(ratio=0.5, end=0.5),
    "kept whole": dict(ratio=0.5, start=0.5),
    "feed-forward": dict(ratio=0.5, merge_mlp=True),
    "todo": dict(ratio=0.5, method="todo"),
    "keys": dict(ratio=0.5, method="keys"),
}


@pytest.mark.filterwarnings("ignore:.*did not call the layers at which its tokens merge")
@pytest.mark.parametrize("family", map(case, FAMILIES.values()))
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_kept_output_is_unmerged_as_it_was_merged(family: Family, settings: Any) -> None:
    uncached = steps(family, apply_tome(family.build(), **settings))
    expected = steps(family, add_caches_around(apply_tome(family.build(), **settings)))
    model = add_caches(apply_tome(family.build(), **settings))
    for step, (got, wanted, other) in enumerate(zip(steps(family, model), expected, uncached, strict=True)):
        assert same(got, wanted)
        assert step % 2 == 0 or not np.array_equal(got[0], other[0])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_cache_that_came_after_tome_stays_when_tome_goes(family: Family) -> None:
    plain = family.run(family.build())
    model = apply_tome(family.build(), 0.5)
    add_caches(model, attentions(model))
    merged = family.run(model)
    assert not same(merged, plain)
    assert same(family.run(remove_tome(model)), merged)  # kept
    assert same(family.run(model), plain)


class OneBuffer(Processor):
    """Writes what it makes into the tensor that it made first."""

    buffer: Any = None

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        made = super().__call__(*inputs, **keywords)
        first = made[0] if isinstance(made, tuple) else made
        self.buffer = first if self.buffer is None else paddle.assign(first, self.buffer)
        return (self.buffer, *made[1:]) if isinstance(made, tuple) else self.buffer


@pytest.mark.parametrize("family", map(case, FAMILIES.values()))
def test_the_same_tensor_may_hold_something_new(family: Family) -> None:
    expected = steps(family, apply_tome(family.build(), 0.5))
    assert all(map(same, steps(family, set_processors(apply_tome(family.build(), 0.5), OneBuffer)), expected))


@pytest.mark.parametrize("method", ["tome", "todo", "keys"])
@pytest.mark.parametrize("family", map(case, FAMILIES.values()))
def test_what_was_computed_without_positions_is_not_kept(family: Family, method: str) -> None:
    expected = steps(family, add_caches(set_processors(family.build(), RoundTheNorms)))
    model = add_caches(apply_tome(set_processors(family.build(), RoundTheNorms), 0.5, method=method))
    with pytest.warns(UserWarning, match="RoundTheNorms does not call norm_"):
        assert all(map(same, steps(family, model), expected))
