"""Matchers: how it is found out which source merges into which destination. One file a matcher."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle

from ppdiffusers_tome.merging import exact, tiles
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition

# From the tokens of a block, ``[batch, tokens, channels]``; None where none merge.
Matcher = Callable[[paddle.Tensor], Matching | None]


def matcher(
    partition: Partition, grid: Grid, num_merged: int, *,
    tile: int | None = None, stride: tuple[int, ...] = (2, 2), min_similarity: float | None = None,
    constants: Constants | None = None, frames: int = 1,
) -> Matcher:  # fmt: skip
    """The matcher for a grid: exact, or in tiles where there are several.

    Made once a call of the denoiser and grid; all blocks on the grid share it.

    Args:
        partition: the sources and destinations of the grid.
        grid: of the tokens.
        num_merged: how many of S sources merge, ``1 <= num_merged <= S``; at most, with ``min_similarity``.
        tile: as in ``ToMeConfig``.
        stride: ``(sx, sy)`` or ``(sx, sy, st)`` of the partition; tiles hold whole cells. Over several frames, ``st``,
            tokens are compared with those of the same cell's frames only, so the cost is linear in the frames.
        min_similarity: as in ``ToMeConfig``.
        constants: as in ``partition.random_partition``.
        frames: how many such grids the tokens of an image hold, one after the other. Each merges by itself.
    """
    match = partial(exact.match, partition=partition)
    sx, sy, st = (*stride, 1)[:3]
    if tile is not None or st > 1:
        grid_tiles = tiles.cut_into_tiles(grid, sx, sy, tile or max(grid.height, grid.width), st)
        if grid_tiles.number > 1:
            match = partial(tiles.match, tiled=tiles.split_by_tile(partition, grid_tiles, constants))
    match = partial(match, num_merged=num_merged, min_similarity=min_similarity)
    return match if frames == 1 else partial(_of_each_frame, match, frames)


def _of_each_frame(match: Matcher, frames: int, tokens: paddle.Tensor) -> Matching | None:
    matching = match(tokens.reshape([-1, tokens.shape[1] // frames, tokens.shape[2]]))
    return None if matching is None else matching.unfold_frames(frames)
