"""Constants: made once, kept as long as their arrays, and no longer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.merging import constants
from ppdiffusers_tome.merging.constants import load_constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.state.plan import Plan


@dataclass(frozen=True, eq=False)
class Numbers:
    array: Any
    count: int


def test_arrays_become_tensors_once_and_as_long_as_they_are_there() -> None:
    before = len(constants._loaded)
    for number in range(200):
        numbers = Numbers(np.full(3, number), number)
        found = load_constants(numbers)
        assert (found.array.tolist(), found.count) == ([number] * 3, number)
        assert load_constants(numbers) is found
        del numbers
    assert len(constants._loaded) <= before


def test_a_hundred_sizes_and_ratios_in_turns_keep_what_is_in_use() -> None:
    """The four caches hold 32 entries each."""

    def reduce_at(side: int, config: ToMeConfig) -> None:
        layout = Layout(Grid(side, side))
        plan = Plan(config, layout, config.num_merged(layout.grid), timestep=paddle.to_tensor([5]))
        plan.reduce(paddle.zeros([1, layout.num_tokens, 2]))

    for number in (*range(100), *range(100)):
        for config in (ToMeConfig(0.5, tile=4), ToMeConfig(0.5, method="todo")):
            reduce_at(4 + number, config)
        reduce_at(32, ToMeConfig(0.1 + number / 200, method="todo"))  # as of a ramp
    assert 0 < len(constants._loaded) <= 32 * 4
