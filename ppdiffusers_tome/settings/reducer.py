"""The construction of reducers from settings."""

from collections.abc import Callable
from functools import partial

import paddle

from ppdiffusers_tome.merging.chosen_keys import ChosenKeys, TokenReduction, select_key_tokens
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.merging.matchers import match_tokens
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.partition import random_partition, regular_partition
from ppdiffusers_tome.merging.tiles import split_by_tile
from ppdiffusers_tome.settings.config import ToMeConfig

# Reduces the tokens of a block, ``[batch, tokens, channels]``.
Reducer = Callable[[paddle.Tensor], TokenReduction]


def build_reducer(
    config: ToMeConfig, layout: Layout, num_merged: int, *, timestep: paddle.Tensor | None = None
) -> Reducer:
    """Build the reducer that blocks on a grid share in a call.

    ``num_merged`` counts in all frames with a stride over frames, else in one; ``timestep`` is ``random_partition``'s.
    """
    method = METHODS[config.method]
    grid = layout.grid if config.st > 1 else layout.grid.frame
    frames, stride = layout.grid.frames // grid.frames, (config.sx, config.sy, config.st)
    with paddle.no_grad():
        if config.use_rand:
            partition = random_partition(grid, config.sx, config.sy, seed=config.seed, timestep=timestep, st=config.st)
        else:
            partition = regular_partition(grid, config.sx, config.sy, st=config.st)
    if layout.prefix:
        partition = partition.shift(layout.prefix)
    if not method.compares:
        kept = select_key_tokens(partition, num_merged, frames=frames)
        return partial(_make_chosen_keys, kept)
    tiles = split_by_tile(partition, grid, config.tile, stride)
    return partial(
        match_tokens, partition=partition, num_merged=num_merged, tiles=tiles, frames=frames,
        keeps_queries=method.keeps_queries,
    )  # fmt: skip


# For ``partial``, as Paddle 2.6 loses the variables of a nested function while it traces a program.
def _make_chosen_keys(kept: paddle.Tensor, tokens: paddle.Tensor) -> ChosenKeys:
    return ChosenKeys(kept, tokens.shape[0], tokens.shape[1])
