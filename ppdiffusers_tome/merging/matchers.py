"""Matchers, which decide which sources merge into which destinations.

ToMe's bipartite soft matching (Token Merging for Fast Stable Diffusion, Bolya & Hoffman 2023, section 3): every source
finds its most similar destination (cosine), and the most similar sources merge into theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle

from ppdiffusers_tome.merging.bipartite import merge_most_similar
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.similarity import find_nearest
from ppdiffusers_tome.merging.tiles import TiledPartition, cut_into_tiles, split_by_tile

# From the tokens of a block, ``[batch, tokens, channels]``; None where none merge.
Matcher = Callable[[paddle.Tensor], Matching | None]


def build_matcher(
    partition: Partition, grid: Grid, num_merged: int, *,
    tile: int | None = None, stride: tuple[int, ...] = (2, 2), min_similarity: float | None = None,
    constants: Constants | None = None, frames: int = 1,
) -> Matcher:  # fmt: skip
    """Build the matcher of a grid: exact, or in tiles where there are several.

    It is built once for a grid and call of the denoiser; all blocks on the grid share it.

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
    tiled = None
    sx, sy, st = (*stride, 1)[:3]
    if tile is not None or st > 1:
        tiles = cut_into_tiles(grid, sx, sy, tile or max(grid.height, grid.width), st)
        if tiles.num_tiles > 1:
            tiled = split_by_tile(partition, tiles, constants)
    match = partial(
        match_tokens, partition=partition, num_merged=num_merged, min_similarity=min_similarity, tiled=tiled
    )
    return match if frames == 1 else partial(_match_frames, match, frames)


def match_tokens(
    x: paddle.Tensor, partition: Partition, num_merged: int, min_similarity: float | None = None,
    tiled: TiledPartition | None = None,
) -> Matching | None:  # fmt: skip
    """Decide which tokens merge.

    Args:
        x: ``[batch, tokens, channels]``, the block's input, any float type.
        partition: the sources and destinations of the grid.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        min_similarity: the least cosine at which they do; fewer may then merge.
        tiled: the same partition by tiles, to compare sources with the destinations in and beside their tiles only;
            None compares all with all.

    Returns:
        The matching of the sources with their destinations; None where none are similar enough.
    """
    with paddle.no_grad():
        if tiled is None:
            sources = partition.sources
            similarity, best = find_nearest(x, sources, partition.destinations)
        else:
            sources = tiled.sources
            similarity, best = find_nearest(x, sources, tiled.destinations, tiled.num_tiles)
            if tiled.rank_penalty is not None:
                # NaN (of latents that overflowed) sorts arbitrarily; use -2 so it still ranks above the padding.
                similarity = paddle.where(paddle.isfinite(similarity), similarity, paddle.full_like(similarity, -2))
                similarity = similarity + tiled.rank_penalty
            best = paddle.gather(tiled.dst_index, (best + tiled.tile_offset).flatten()).reshape(best.shape)
        return merge_most_similar(
            similarity, best, sources, partition, num_tokens=x.shape[1], num_merged=num_merged,
            min_similarity=min_similarity,
        )  # fmt: skip


def _match_frames(match: Matcher, frames: int, tokens: paddle.Tensor) -> Matching | None:
    matching = match(tokens.reshape([-1, tokens.shape[1] // frames, tokens.shape[2]]))
    return None if matching is None else matching.unfold_frames(frames)
