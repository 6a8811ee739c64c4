"""Merging methods: who merges with whom. One file a method; ``match`` picks the one that a config asks for."""

from __future__ import annotations

import paddle

from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.methods import tiled, tome
from ppdiffusers_tome.partition import Partition


def match(x: paddle.Tensor, partition: Partition, grid: Grid, config: ToMeConfig) -> Matching:
    """Decide which tokens of ``x``, ``[batch, tokens, channels]`` on ``grid``, merge."""
    num_merged = grid.num_merged(config.ratio)
    if config.tile is not None:
        tiles = tiled.tiles_of(grid, config.sx, config.sy, config.tile)
        if tiles.number > 1:
            return tiled.match(x, partition, num_merged, tiles)
    return tome.match(x, partition, num_merged)
