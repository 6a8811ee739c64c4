"""Keys and values averaged over cells of the stride (``methods/pool.py``); no similarities are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.keys.fewer import FewerKeys


@dataclass(frozen=True)
class PooledKeys(FewerKeys):
    """The mean of each cell gives one key and one value; tokens outside of these cells give their own.

    Attributes:
        cells: int64 ``[cells, tokens of a cell]``, tokens, the same in every image.
        whole: int64 ``[others]``, the tokens in none of the cells; None where there are none.
        middle: which token of a cell is in its middle.
        batch: as in ``FewerKeys``.
        num_tokens: as in ``FewerKeys``.
    """

    cells: paddle.Tensor
    whole: paddle.Tensor | None
    middle: int
    batch: int
    num_tokens: int

    @property
    def num_left(self) -> int:
        return self.cells.shape[0] + (0 if self.whole is None else self.whole.shape[0])

    @property
    def is_even(self) -> bool:
        return self.whole is None

    @property
    def positions(self) -> paddle.Tensor:
        return self._with_whole(self.cells[:, self.middle], self.whole, axis=0).unsqueeze(0)

    @property
    def log_sizes(self) -> paddle.Tensor:
        pooled = paddle.full([self.cells.shape[0]], math.log(self.cells.shape[1]), dtype="float32")
        whole = None if self.whole is None else paddle.zeros([self.whole.shape[0]], dtype="float32")
        return self._with_whole(pooled, whole, axis=0).unsqueeze(0)

    def keys_of(self, x: paddle.Tensor) -> paddle.Tensor:
        in_cells = paddle.index_select(x, self.cells.flatten(), axis=1)
        means = in_cells.reshape([-1, *self.cells.shape, x.shape[2]]).mean(axis=2)
        whole = None if self.whole is None else paddle.index_select(x, self.whole, axis=1)
        return self._with_whole(means, whole, axis=1)

    def merge_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        in_cells = paddle.index_select(mask, self.cells.flatten(), axis=2)
        strongest = in_cells.reshape([-1, mask.shape[1], *self.cells.shape]).min(axis=3)
        whole = None if self.whole is None else paddle.index_select(mask, self.whole, axis=2)
        return self._with_whole(strongest, whole, axis=2)

    @staticmethod
    def _with_whole(of_cells: paddle.Tensor, whole: paddle.Tensor | None, axis: int) -> paddle.Tensor:
        return of_cells if whole is None else paddle.concat([of_cells, whole], axis=axis)


@dataclass(frozen=True)
class Pooling:
    """What of a sequence is pooled, as arrays; see ``PooledKeys``."""

    cells: np.ndarray
    whole: np.ndarray
    middle: int

    def __call__(self, x: paddle.Tensor, constants: Constants) -> PooledKeys:
        """For tokens ``[batch, tokens, channels]``."""
        whole = constants(self.whole) if len(self.whole) else None
        return PooledKeys(constants(self.cells), whole, self.middle, x.shape[0], x.shape[1])


@lru_cache(maxsize=32)
def pooling(layout: Layout, grid: Grid, num_dropped: int, stride: tuple[int, int, int]) -> Pooling:
    """Pool as many cells, evenly spread, as it takes to have ``num_dropped`` keys fewer, to a cell.

    Args:
        layout: of the tokens.
        grid: whose cells are pooled: all of it, or one frame's, whose cells are then those of every frame.
        num_dropped: of the grid.
        stride: ``(sx, sy, st)``.
    """
    sx, sy, st = stride
    cells, _ = grid.cells(sx, sy, st)
    number = min(len(cells), max(1, round(num_dropped / (cells.shape[1] - 1))))
    chosen = cells[np.arange(number) * len(cells) // number]
    frames = np.arange(layout.grid.frames // grid.frames) * grid.num_tokens + layout.prefix
    chosen = (chosen + frames[:, None, None]).reshape(-1, cells.shape[1])
    others = np.ones(layout.num_tokens, bool)
    others[chosen] = False
    # What stands before the grid comes last, as in a matching.
    whole = np.roll(np.flatnonzero(others), -layout.prefix)
    return Pooling(chosen, whole, ((st // 2) * sy + sy // 2) * sx + sx // 2)
