"""Keys and values of some tokens only (``methods/todo.py``), chosen by the grid, so no similarities are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.gradients import disable_gradients
from ppdiffusers_tome.merging.kv_reduction.base import FewerKeys
from ppdiffusers_tome.merging.partition import Partition


@dataclass(frozen=True)
class ChosenKeys(FewerKeys):
    """Some tokens give keys and values, the others none.

    Attributes:
        kept: int64 ``[left]``, tokens, the same in every image.
        batch: as in ``FewerKeys``.
        num_tokens: as in ``FewerKeys``.
        prefix: how many of them stand before the grid's; they come last in ``kept``.
    """

    kept: paddle.Tensor
    batch: int
    num_tokens: int
    prefix: int = 0

    @property
    def num_left(self) -> int:
        return self.kept.shape[0]

    @property
    def uniform_groups(self) -> bool:
        return self.prefix == 0

    @property
    def positions(self) -> paddle.Tensor:
        return self.kept.unsqueeze(0)

    @property
    def log_group_sizes(self) -> paddle.Tensor:
        """Each of the grid's tokens stands for equally many."""
        of_grid = self.num_left - self.prefix
        sizes = paddle.full([1, of_grid], math.log((self.num_tokens - self.prefix) / of_grid), dtype="float32")
        if self.prefix == 0:
            return sizes
        return paddle.concat([sizes, paddle.zeros([1, self.prefix], dtype="float32")], axis=1)

    def keys_of(self, x: paddle.Tensor) -> paddle.Tensor:
        return paddle.index_select(x, self.kept, axis=1)

    def merge_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        return paddle.index_select(mask, self.kept, axis=mask.ndim - 1)


@disable_gradients
def select_key_tokens(
    partition: Partition, num_dropped: int, constants: Constants | None = None, *, frames: int = 1
) -> paddle.Tensor:
    """The tokens that give keys, int64 ``[tokens - num_dropped]``: destinations, evenly spread sources, and the prefix.

    Args:
        partition: of the grid; its sources stand cell by cell.
        num_dropped: how many of S sources give none, ``1 <= num_dropped <= S``.
        constants: as in ``partition.random_partition``; None, which keeps none, where every step drops another number.
        frames: how many such grids stand one after the other; the same tokens of each give keys.
    """
    num_sources = partition.sources.shape[0]
    parts = [partition.destinations]
    if num_dropped < num_sources:
        some = num_sources - num_dropped
        evenly = (constants or Constants())(_evenly(num_sources, some))
        parts.append(paddle.gather(partition.sources, evenly))
    if partition.prefix:
        parts.append(paddle.arange(partition.prefix, dtype="int64"))
    kept = paddle.concat(parts) if len(parts) > 1 else parts[0]
    if frames == 1:
        return kept
    a_frame = num_sources + partition.destinations.shape[0]
    return (paddle.arange(0, frames * a_frame, a_frame, dtype="int64").unsqueeze(1) + kept).flatten()


@lru_cache(maxsize=32)
def _evenly(number: int, some: int) -> np.ndarray:
    """``some`` of the numbers below ``number``, spread evenly, int64."""
    return np.arange(some, dtype=np.int64) * number // some
