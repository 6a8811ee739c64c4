"""Constants: made once, kept as long as their arrays, and no longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.settings.reducer import build_reducer


def reduce_at(constants: Constants, side: int, method: str) -> None:
    layout = Layout(Grid(side, side))
    config = ToMeConfig(0.5, method=method, **({"tile": 4} if method == "tome" else {}))
    x = paddle.zeros([1, layout.num_tokens, 2])
    build_reducer(config, layout, layout.grid.num_merged(0.5), timestep=paddle.to_tensor([5]), constants=constants)(x)


@dataclass(frozen=True, eq=False)
class Numbers:
    array: Any
    count: int


def test_arrays_become_tensors_once_and_as_long_as_they_are_there() -> None:
    constants = Constants()
    for number in range(200):
        numbers = Numbers(np.full(3, number), number)
        found = constants(numbers)
        assert (found.array.tolist(), found.count) == ([number] * 3, number)
        assert constants(numbers) is found
        del numbers
    assert len(constants._kept) == 0


def test_a_hundred_sizes_in_turns_keep_what_is_in_use() -> None:
    """The three caches hold 32 sizes each."""
    constants = Constants()
    for side in (*range(4, 104), *range(4, 104)):
        for method in ("tome", "todo"):
            reduce_at(constants, side, method)
    assert len(constants._kept) <= 32 * 4
