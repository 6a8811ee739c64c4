"""Merging methods: who merges with whom. One file a method; ``matcher`` picks the one that a config asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle

from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.methods import tiled, tome
from ppdiffusers_tome.partition import Partition

Matcher = Callable[[paddle.Tensor], Matching]


def matcher(partition: Partition, grid: Grid, config: ToMeConfig) -> Matcher:
    """What decides which tokens of a block's input ``[batch, tokens, channels]`` merge.

    Made once a call of the denoiser and grid; all blocks on the grid share it.
    """
    num_merged = grid.num_merged(config.ratio)
    if config.tile is not None:
        tiles = tiled.tiles_of(grid, config.sx, config.sy, config.tile)
        if tiles.number > 1:
            return partial(tiled.match, tiled=tiled.by_tiles(partition, tiles), num_merged=num_merged)
    return partial(tome.match, partition=partition, num_merged=num_merged)
