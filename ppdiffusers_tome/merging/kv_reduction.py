"""Fewer keys and values than queries: chosen tokens, or pooled cells.

All tokens give queries, so nothing is restored. (Pooled and merged keys are a ``Matching`` that keeps queries.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constant, Constants
from ppdiffusers_tome.merging.grid import Layout, divide_evenly
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.methods import MEAN
from ppdiffusers_tome.merging.partition import Partition


@dataclass(frozen=True)
class ChosenKeys:
    """Tokens that give keys and values, with the protocol of ``Matching``."""

    kept: paddle.Tensor  # int64 [left], tokens, the same in every image
    batch: int
    num_tokens: int
    prefix: int = 0  # how many tokens precede the grid's; they come last in `kept`
    keeps_queries: bool = True

    @property
    def uniform_groups(self) -> bool:
        return self.prefix == 0

    @property
    def num_left(self) -> int:
        return self.kept.shape[0]

    @property
    def positions(self) -> paddle.Tensor:
        return self.kept.unsqueeze(0)

    @property
    def log_group_sizes(self) -> paddle.Tensor:
        # Each of the grid's tokens stands for equally many.
        of_grid = self.num_left - self.prefix
        sizes = paddle.full([1, of_grid], math.log((self.num_tokens - self.prefix) / of_grid), dtype="float32")
        if self.prefix == 0:
            return sizes
        return paddle.concat([sizes, paddle.zeros([1, self.prefix], dtype="float32")], axis=1)

    def reduce(self, x: paddle.Tensor, combine: str = MEAN) -> paddle.Tensor:
        return paddle.index_select(x, self.kept, axis=1)

    def restore(self, y: paddle.Tensor) -> paddle.Tensor:
        return y

    def reduce_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        return paddle.index_select(mask, self.kept, axis=mask.ndim - 1)


# What every method makes of a block's tokens: ``reduce``, ``restore``, ``reduce_mask``, ``positions`` (of one image
# where all have the same), ``log_group_sizes``, ``keeps_queries``, ``batch``, ``num_tokens`` and ``num_left``.
TokenReduction: TypeAlias = Matching | ChosenKeys


def select_key_tokens(
    partition: Partition, num_dropped: int, constants: Constants | None = None, *, frames: int = 1
) -> paddle.Tensor:
    """Select tokens for keys: destinations, evenly spread sources, the prefix.

    Sources in no cell give as large a share of the keys as of the tokens: with a stride of 3 the last of 64 columns has
    no destination. With random destinations they are different at every timestep, too: errors that are the same in
    every step add up in the image.

    Args:
        partition: of the grid; its S sources are listed cell by cell.
        num_dropped: how many sources give none, ``1 <= num_dropped <= S``.
        constants: as in ``partition.random_partition``.
        frames: how many such grids an image's tokens hold, one after the other; the same tokens of each give keys.

    Returns:
        int64 ``[tokens - num_dropped]``.
    """
    num_sources, num_destinations = partition.sources.shape[0], partition.destinations.shape[0]
    chosen = (constants or Constants())(
        _choose_sources(num_sources - num_dropped, num_sources, num_destinations, partition.num_outside)
    )
    parts = [partition.destinations]
    if chosen.inside is not None:
        parts.append(paddle.gather(partition.sources, chosen.inside))
    if chosen.outside is not None:
        index = chosen.outside
        if partition.random_numbers is not None:
            index = (index + partition.random_numbers[:1]) % partition.num_outside
        parts.append(paddle.gather(partition.sources, index + (num_sources - partition.num_outside)))
    if partition.prefix:
        parts.append(paddle.arange(partition.prefix, dtype="int64"))
    kept = paddle.concat(parts) if len(parts) > 1 else parts[0]
    if frames == 1:
        return kept
    frame_tokens = num_sources + num_destinations
    return (paddle.arange(0, frames * frame_tokens, frame_tokens, dtype="int64").unsqueeze(1) + kept).flatten()


@dataclass(frozen=True, eq=False)
class _ChosenSources:
    inside: Constant  # int64, indices of sources in cells, or None
    outside: Constant  # int64, indices of those in no cell, counted from the first of these, or None


@lru_cache(maxsize=32)
def _choose_sources(count: int, num_sources: int, num_destinations: int, num_outside: int) -> _ChosenSources:
    """Choose ``count`` sources, spread evenly."""
    share = (num_destinations + count) / (num_destinations + num_sources)
    outside = min(count, round(num_outside * share))
    inside = count - outside
    return _ChosenSources(
        _spread_evenly(inside, num_sources - num_outside) if inside else None,
        _spread_evenly(outside, num_outside) if outside else None,
    )


@lru_cache(maxsize=32)
def plan_pooling(layout: Layout, num_dropped: int, stride: tuple[int, int, int]) -> Matching:
    """Pool as many cells, evenly spread, as drop that many keys.

    The grid is cut evenly into cells of the stride or a little smaller, so that none is left over at its edges: as many
    as with the stride alone if that divides the grid, else more.

    Args:
        layout: of the tokens. Without a stride over frames, the cells of one frame are those of every frame.
        num_dropped: the keys of the grid to drop, or as many as pooling all cells drops.
        stride: ``(sx, sy, st)``.

    Returns:
        The groups of one image, for ``Constants`` and ``Matching.repeat``. The token in a cell's middle stands for it.

    Example, one of the four cells of a 4x4 grid, of which the token 5 in the middle has the position:

        >>> from ppdiffusers_tome.merging.grid import Grid
        >>> pooling = plan_pooling(Layout(Grid(4, 4)), num_dropped=3, stride=(2, 2, 1))
        >>> pooling.owner.reshape(4, 4).tolist(), pooling.num_left
        ([[0, 0, 1, 2], [0, 0, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], 13)
        >>> pooling.order.tolist()
        [[0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]
    """
    grid = layout.grid if stride[2] > 1 else replace(layout.grid, frames=1)
    shape = (grid.frames, grid.height, grid.width)
    cells, middles = zip(*map(_cut_side, shape, reversed(stride)), strict=True)
    cell_of = np.ravel_multi_index(np.ix_(*cells), [len(middle) for middle in middles]).ravel()
    middle_of = np.ravel_multi_index(np.ix_(*middles), shape).ravel()
    num_cells = len(middle_of)
    droppable = grid.num_tokens - num_cells
    num_pooled = max(1, round(num_cells * min(1, num_dropped / droppable)) if droppable else num_cells)
    pooled = _spread_evenly(num_pooled, num_cells)
    # The group of each token of the grid; -1 where the token stays by itself.
    group_of_cell = np.full(num_cells, -1)
    group_of_cell[pooled] = np.arange(num_pooled)
    group = group_of_cell[cell_of]
    copy = np.arange(layout.grid.frames // grid.frames)[:, None]
    owner = np.where(group < 0, -1, group + copy * num_pooled).ravel()
    owner = np.concatenate([np.full(layout.prefix, -1), owner]).astype(np.int32)
    # Tokens before the grid come last, as in a matching.
    alone = np.roll(np.flatnonzero(owner < 0), -layout.prefix)
    owner[alone] = np.arange(len(alone)) + num_pooled * len(copy)
    sizes = np.bincount(owner)
    kept = np.concatenate([(middle_of[pooled] + copy * grid.num_tokens + layout.prefix).ravel(), alone])
    dropped = np.setdiff1d(np.arange(layout.num_tokens), kept)
    return Matching(
        owner, 1 / sizes.astype(np.float32)[:, None], np.concatenate([dropped, kept])[None], batch=1,
        num_tokens=len(owner), num_left=len(sizes), keeps_queries=True, uniform_groups=sizes.max() < 2 * sizes.min(),
    )  # fmt: skip


def _cut_side(length: int, at_most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each place's cell on a side, and each cell's middle."""
    cell_of = divide_evenly(length, at_most)
    counts = np.bincount(cell_of)
    return cell_of, np.cumsum(counts) - counts + counts // 2


def _spread_evenly(count: int, number: int) -> np.ndarray:
    """Choose ``count`` of the numbers below ``number``, spread evenly, int64 ``[count]``."""
    return np.arange(count, dtype=np.int64) * number // max(1, count)
