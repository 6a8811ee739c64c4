"""Who merges with whom; ``matcher`` picks the way of finding out that a config asks for. One file a way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import paddle

from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.constants import Constants
from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.matchers import exact, some_keys, tiled
from ppdiffusers_tome.matching import Keys, Matching
from ppdiffusers_tome.methods import methods
from ppdiffusers_tome.partition import Partition

Matcher = Callable[[paddle.Tensor], Matching | Keys | None]


def matcher(
    partition: Partition, grid: Grid, config: ToMeConfig, num_merged: int, constants: Constants | None = None
) -> Matcher:
    """What decides which tokens of a block's input ``[batch, tokens, channels]`` merge.

    Made once a call of the denoiser and grid; all blocks on the grid share it. It answers None where none merge.

    Args:
        partition: the sources and destinations of the grid.
        grid: of the tokens.
        config: the settings; of its ratio only ``num_merged`` counts.
        num_merged: how many of S sources merge, ``1 <= num_merged <= S``; at most, with ``min_similarity``.
        constants: as in ``partition.random_partition``.
    """
    if methods()[config.method].keys_only:
        return partial(some_keys.match, chosen=some_keys.chosen(partition, num_merged, constants))
    how_many: dict[str, Any] = dict(num_merged=num_merged, min_similarity=config.min_similarity)
    if config.tile is not None:
        tiles = tiled.tiles_of(grid, config.sx, config.sy, config.tile)
        if tiles.number > 1:
            return partial(tiled.match, tiled=tiled.by_tiles(partition, tiles, constants), **how_many)
    return partial(exact.match, partition=partition, **how_many)
