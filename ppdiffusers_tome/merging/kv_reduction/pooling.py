"""Keys and values of whole cells of a grid (``methods/pool.py``): the grid tells which, so nothing is compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.kv_reduction.merged_keys import MergedKeys
from ppdiffusers_tome.merging.matching import Matching, dim_size


@dataclass(frozen=True, eq=False)
class Pooling:
    """Groups of an image's tokens, the same in every image: cells, and tokens that stay by themselves.

    Attributes:
        owner: int32 ``[tokens]``, the group of each token.
        inverse_count: float32 ``[groups, 1]``, one over how many tokens each group has.
        order: int64 ``[tokens]``, the tokens as in ``Matching.order``; a cell's is the one in its middle.
        in_cells: whether all tokens are in cells.
    """

    owner: np.ndarray
    inverse_count: np.ndarray
    order: np.ndarray
    in_cells: bool

    @property
    def num_left(self) -> int:
        """Groups, that is, keys."""
        return len(self.inverse_count)

    def __call__(self, x: paddle.Tensor, constants: Constants) -> MergedKeys:
        """The keys of tokens ``[batch, tokens, channels]``; ``constants`` as in ``partition.random_partition``."""
        batch, num_tokens = dim_size(x, 0), len(self.owner)
        images = paddle.arange(batch, dtype="int32").unsqueeze(1)
        owner = (constants(self.owner) + images * self.num_left).flatten()
        order = constants(self.order) + images.astype("int64") * num_tokens
        inverse_count = constants(self.inverse_count).expand([batch, self.num_left, 1]).flatten(0, 1)
        matching = Matching(owner, inverse_count, order, x.shape[0], num_tokens, num_tokens - self.num_left)
        return MergedKeys.of(matching, in_cells=self.in_cells)


@lru_cache(maxsize=32)
def plan_pooling(layout: Layout, grid: Grid, num_dropped: int, stride: tuple[int, int, int]) -> Pooling:
    """Pool as many cells, evenly spread, as it takes to have ``num_dropped`` keys fewer, to a cell.

    The grid is cut evenly into cells of the stride or a little smaller, so that none is left over at its edges: as many
    as with the stride alone if that divides the grid, else more.

    Args:
        layout: of the tokens.
        grid: whose cells are pooled: all of it, or one frame's, whose cells are then those of every frame.
        num_dropped: of the grid; all cells are pooled where there are no more keys to drop.
        stride: ``(sx, sy, st)``.
    """
    sx, sy, st = stride
    rows, columns, frames = (
        np.array_split(np.arange(length), -(-length // at_most))
        for length, at_most in ((grid.height, sy), (grid.width, sx), (grid.frames, st))
    )
    numbers = np.arange(grid.num_tokens).reshape(grid.frames, grid.height, grid.width)
    cells = [numbers[np.ix_(frame, row, column)] for frame in frames for row in rows for column in columns]
    droppable = grid.num_tokens - len(cells)
    wanted = round(len(cells) * min(1, num_dropped / droppable)) if droppable else len(cells)
    chosen = np.arange(max(1, wanted)) * len(cells) // max(1, wanted)
    of_grid = [(cells[number].ravel(), cells[number][tuple(n // 2 for n in cells[number].shape)]) for number in chosen]
    starts = np.arange(layout.grid.frames // grid.frames) * grid.num_tokens + layout.prefix
    pooled = [(cell + start, middle + start) for start in starts for cell, middle in of_grid]
    alone = np.ones(layout.num_tokens, bool)
    alone[np.concatenate([cell for cell, _ in pooled])] = False
    # What stands before the grid comes last, as in a matching.
    whole = np.roll(np.flatnonzero(alone), -layout.prefix)
    owner = np.empty(layout.num_tokens, np.int32)
    counts = np.ones(len(pooled) + len(whole), np.float32)
    for number, (cell, _) in enumerate(pooled):
        owner[cell], counts[number] = number, len(cell)
    owner[whole] = np.arange(len(pooled), len(counts))
    kept = np.concatenate([[middle for _, middle in pooled], whole]).astype(np.int64)
    others = np.setdiff1d(np.arange(layout.num_tokens), kept)
    return Pooling(owner, 1 / counts[:, None], np.concatenate([others, kept]), in_cells=len(whole) == 0)
