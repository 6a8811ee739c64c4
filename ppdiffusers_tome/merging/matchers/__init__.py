"""Matchers: how it is found out which source merges into which destination. One file a matcher."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matchers import exact, tiled
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition

# From the tokens of a block, ``[batch, tokens, channels]``; None where none merge.
Matcher = Callable[[paddle.Tensor], Matching | None]


def matcher(
    partition: Partition, grid: Grid, num_merged: int, *,
    tile: int | None = None, stride: tuple[int, int] = (2, 2), min_similarity: float | None = None,
    constants: Constants | None = None,
) -> Matcher:  # fmt: skip
    """The matcher for a grid: exact, or in tiles where there are several.

    Made once a call of the denoiser and grid; all blocks on the grid share it.

    Args:
        partition: the sources and destinations of the grid.
        grid: of the tokens.
        num_merged: how many of S sources merge, ``1 <= num_merged <= S``; at most, with ``min_similarity``.
        tile: as in ``ToMeConfig``.
        stride: ``(sx, sy)`` of the partition; tiles hold whole cells.
        min_similarity: as in ``ToMeConfig``.
        constants: as in ``partition.random_partition``.
    """
    if tile is not None:
        tiles = tiled.tiles_of(grid, *stride, tile)
        if tiles.number > 1:
            by_tiles = tiled.by_tiles(partition, tiles, constants)
            return partial(tiled.match, tiled=by_tiles, num_merged=num_merged, min_similarity=min_similarity)
    return partial(exact.match, partition=partition, num_merged=num_merged, min_similarity=min_similarity)
