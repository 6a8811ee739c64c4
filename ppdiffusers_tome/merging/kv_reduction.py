"""Fewer keys and values than queries: chosen tokens, or pooled cells.

All tokens give queries, so nothing is restored. (Merged keys are a ``Matching`` that keeps queries.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout, divide_evenly
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.methods import MEAN
from ppdiffusers_tome.merging.partition import draw_coefficients, hash_cells
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.tensor_ops import dim_size


@dataclass(frozen=True)
class ChosenKeys(TokenReduction):
    """Some tokens give keys and values, the other tokens none."""

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


@dataclass(frozen=True, eq=False)
class KeyChoice:
    """The choice of the tokens that give keys, the same in every image.

    Key ``k`` of a grid is the sum over the parts of ``numbers[start + (hash + step) % size]``, with entry ``k`` of each
    part. There is one part, of tokens cell by cell; or one a side of the grid, of the first tokens of rows and columns.

    Attributes:
        numbers: int64, tokens.
        start, size, step: int64 ``[parts, keys]``.
        coefficients: three of the hash, each int64 ``[parts, keys]``; none where it is 0.
        grid: of one frame, or of all with a stride over frames.
        layout: of all tokens; every frame gives the same keys.
    """

    numbers: np.ndarray
    start: np.ndarray
    size: np.ndarray
    step: np.ndarray
    coefficients: tuple[np.ndarray, ...]
    grid: Grid
    layout: Layout

    @property
    def num_left(self) -> int:
        return self.start.shape[1] * (self.layout.grid.frames // self.grid.frames) + self.layout.prefix

    def choose(self, timestep: paddle.Tensor | None, constants: Constants) -> paddle.Tensor:
        """Choose the tokens, int64 ``[left]``, the prefix last; see ``partition.hash_cells``."""
        step = constants(self.step)
        if self.coefficients:
            step = step + hash_cells(self.coefficients, timestep, constants)
        index = step % constants(self.size) + constants(self.start)
        kept, *more = (paddle.gather(constants(self.numbers), index[part]) for part in range(len(self.start)))
        for numbers in more:
            kept = kept + numbers
        prefix, num_tokens = self.layout.prefix, self.grid.num_tokens
        if self.layout.grid.frames > self.grid.frames:
            frame_starts = paddle.arange(0, self.layout.grid.num_tokens, num_tokens, dtype="int64")
            kept = (frame_starts.unsqueeze(1) + kept).flatten()
        return paddle.concat([kept + prefix, paddle.arange(prefix, dtype="int64")]) if prefix else kept


@lru_cache(maxsize=32)
def plan_key_choice(
    layout: Layout, num_dropped: int, stride: tuple[int, int, int], seed: int | None = None
) -> KeyChoice:
    """Plan keys of one token a cell, and of spare ones, evenly spread.

    There are as many cells as in ``plan_pooling``, so no edge lacks keys where the stride does not divide the grid. A
    random token is then of a cell that is a part of the grid in fractions of a token, so that all tokens give keys
    equally often. Cells of whole tokens would differ in size, and the keys of small ones count too much.

    Args:
        layout, stride: as for ``plan_pooling``.
        num_dropped: how many tokens of the grid give no key, or all but one of every cell.
        seed: of the random choice; None chooses the top left token of every cell.

    Example:
        >>> plan = plan_key_choice(Layout(Grid(4, 5)), num_dropped=12, stride=(2, 2, 1))
        >>> plan.choose(None, Constants()).tolist()
        [0, 2, 4, 10, 12, 14, 1, 11]
    """
    sx, sy, st = stride
    grid = layout.grid if st > 1 else layout.grid.single_frame
    sides = (grid.frames, grid.height, grid.width)
    counts = [-(-length // at_most) for length, at_most in zip(sides, (st, sy, sx), strict=True)]
    num_spare = max(0, grid.num_tokens - num_dropped - math.prod(counts))
    is_divided = sides == tuple(np.multiply(counts, (st, sy, sx)))
    if seed is None or num_spare > 0 or is_divided:
        numbers, start, size, step, cell = _list_whole_cells(grid, stride, num_spare)
    else:
        numbers, start, size = _list_fractional_cells(sides, counts)
        step, cell = np.zeros_like(start), np.arange(start.size).reshape(start.shape)
    coefficients = () if seed is None else draw_coefficients(grid, sx, sy, seed, st, cell.max() + 1)[:, cell]
    return KeyChoice(numbers, start, size, step, tuple(coefficients), grid, layout)


def _list_whole_cells(
    grid: Grid, stride: tuple[int, int, int], num_spare: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """List the fields of a one-part ``KeyChoice``, and each key's cell."""
    cell_of, _ = _cut_into_cells(grid, stride)
    sizes = np.bincount(cell_of)
    starts, cells = np.cumsum(sizes) - sizes, np.arange(len(sizes))
    # The tokens of each cell but its destination, of which some give keys too.
    spare_cell = np.repeat(cells, sizes - 1)
    spare_step = 1 + np.arange(len(spare_cell)) - (starts - cells)[spare_cell]
    spare = _spread_evenly(num_spare, len(spare_cell))
    cell = np.concatenate([cells, spare_cell[spare]])[None]
    step = np.concatenate([np.zeros_like(cells), spare_step[spare]])[None]
    return np.argsort(cell_of, kind="stable"), starts[cell], sizes[cell], step, cell


def _list_fractional_cells(sides: Sequence[int], counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the fields of a ``KeyChoice`` with a part for each side.

    Cell ``i`` of a side has the entries from ``i * length`` of ``length`` that number the rows it overlaps, each as
    often as it overlaps it.
    """
    token_strides = (sides[1] * sides[2], sides[2], 1)
    index = np.indices(counts).reshape(3, -1)
    numbers = [
        np.arange(count * length) // count * token_stride
        for length, count, token_stride in zip(sides, counts, token_strides, strict=True)
    ]
    size = np.broadcast_to(np.array(sides)[:, None], index.shape)
    first = np.cumsum([0, *map(len, numbers[:-1])])[:, None]
    shown = [axis for axis, length in enumerate(sides) if length > 1]
    return np.concatenate(numbers), (index * size + first)[shown], size[shown]


@dataclass(frozen=True, eq=False)
class Pooling:
    """Groups of one image, the same for all: cells, and single tokens.

    The fields are those of a ``Matching``. The token in a cell's middle stands for the cell.
    """

    owner: np.ndarray  # int32 [tokens]
    inverse_count: np.ndarray  # float32 [left, 1]
    order: np.ndarray  # int64 [tokens]
    uniform_groups: bool

    @property
    def num_left(self) -> int:
        return len(self.inverse_count)

    def match(self, x: paddle.Tensor, constants: Constants) -> Matching:
        """Match the keys of ``[batch, tokens, channels]``; only the batch matters."""
        batch, num_tokens = dim_size(x, 0), len(self.owner)
        images = paddle.arange(batch, dtype="int32").unsqueeze(1)
        owner = (constants(self.owner) + images * self.num_left).flatten()
        order = constants(self.order) + images.astype("int64") * num_tokens
        inverse_count = constants(self.inverse_count).expand([batch, self.num_left, 1]).flatten(0, 1)
        return Matching(
            owner, inverse_count, order, x.shape[0], num_tokens, num_tokens - self.num_left, keeps_queries=True,
            uniform_groups=self.uniform_groups,
        )  # fmt: skip


@lru_cache(maxsize=32)
def plan_pooling(layout: Layout, num_dropped: int, stride: tuple[int, int, int]) -> Pooling:
    """Pool as many cells, evenly spread, as drop that many keys.

    The grid is cut evenly into cells of the stride or a little smaller, so that none is left over at its edges: as many
    as with the stride alone if that divides the grid, else more.

    Args:
        layout: of the tokens. Without a stride over frames, the cells of one frame are those of every frame.
        num_dropped: the keys of the grid to drop, or as many as pooling all cells drops.
        stride: ``(sx, sy, st)``.

    Example, one of the four cells of a 4x4 grid, of which the token 5 in the middle has the position:

        >>> pooling = plan_pooling(Layout(Grid(4, 4)), num_dropped=3, stride=(2, 2, 1))
        >>> pooling.owner.reshape(4, 4).tolist(), pooling.num_left
        ([[0, 0, 1, 2], [0, 0, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], 13)
        >>> pooling.order.tolist()
        [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    """
    grid = layout.grid if stride[2] > 1 else layout.grid.single_frame
    cell_of, middle_of = _cut_into_cells(grid, stride)
    num_cells = len(middle_of)
    droppable = grid.num_tokens - num_cells
    num_pooled = max(1, round(num_cells * min(1, num_dropped / droppable)) if droppable else num_cells)
    pooled = _spread_evenly(num_pooled, num_cells)
    # The group of each token of the grid; -1 where the token stays by itself.
    group_of_cell = np.full(num_cells, -1)
    group_of_cell[pooled] = np.arange(num_pooled)
    group = group_of_cell[cell_of]
    copies = range(layout.grid.frames // grid.frames)
    owner = np.concatenate(
        [np.full(layout.prefix, -1), *(np.where(group < 0, -1, group + copy * num_pooled) for copy in copies)]
    ).astype(np.int32)
    middles = [middle_of[pooled] + copy * grid.num_tokens + layout.prefix for copy in copies]
    # Tokens before the grid come last, as in a matching.
    alone = np.roll(np.flatnonzero(owner < 0), -layout.prefix)
    owner[alone] = np.arange(len(alone)) + num_pooled * len(copies)
    inverse_count = 1 / np.bincount(owner).astype(np.float32)[:, None]
    kept = np.concatenate([*middles, alone])
    dropped = np.setdiff1d(np.arange(layout.num_tokens), kept)
    return Pooling(owner, inverse_count, np.concatenate([dropped, kept]), uniform_groups=len(alone) == 0)


def _cut_into_cells(grid: Grid, stride: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's cell, and the token in each cell's middle."""
    sides = (grid.frames, grid.height, grid.width)
    cells, middles = zip(*map(_cut_side, sides, reversed(stride)), strict=True)
    cell_of = np.ravel_multi_index(np.ix_(*cells), tuple(map(len, middles))).ravel()
    return cell_of, np.ravel_multi_index(np.ix_(*middles), sides).ravel()


def _cut_side(length: int, at_most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell of each place on a side, and each cell's middle."""
    cell_of = divide_evenly(length, at_most)
    counts = np.bincount(cell_of)
    return cell_of, np.cumsum(counts) - counts + counts // 2


def _spread_evenly(count: int, number: int) -> np.ndarray:
    """Choose ``count`` of the numbers below ``number``, spread evenly, int64 ``[count]``."""
    return np.arange(count, dtype=np.int64) * number // max(1, count)
