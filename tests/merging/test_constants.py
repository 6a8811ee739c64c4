"""Constants: made once, kept as long as their arrays, and no longer."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import paddle

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.state.reducer import build_reducer


def reduce_at(constants: Constants, side: int, method: str) -> None:
    layout = Layout(Grid(side, side))
    config = ToMeConfig(0.5, method=method, **({"tile": 4} if method == "tome" else {}))
    x = paddle.zeros([1, layout.num_tokens, 2])
    build_reducer(config, layout, layout.grid.num_merged(0.5), timestep=paddle.to_tensor([5]), constants=constants)(x)


def test_an_array_with_the_id_of_a_dead_one_is_another() -> None:
    constants = Constants()
    for number in range(200):
        array = np.full(3, number)
        assert constants(array).tolist() == [number] * 3
        del array
    assert len(constants._kept) == 1


def test_a_hundred_sizes_in_turns_keep_what_is_in_use() -> None:
    """The caches of arrays hold 32 sizes, each of about ten arrays."""
    constants = Constants()
    for side in (*range(4, 104), *range(4, 104)):
        for method in ("tome", "pool", "todo"):
            reduce_at(constants, side, method)
    assert len(constants._kept) <= 32 * 20
    assert sum(reference() is None for reference, _ in constants._kept.values()) <= 20


def test_constants_are_freed_without_the_garbage_collector() -> None:
    constants = Constants()
    reduce_at(constants, 8, "tome")
    references = [weakref.ref(tensor) for _, tensor in constants._kept.values()]
    gc.disable()
    try:
        del constants
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()
