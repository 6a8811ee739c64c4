"""Fewer keys and values than queries: those of chosen tokens.

All tokens give queries, so nothing is restored. (Merged keys are a ``Matching`` that keeps queries.)
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constant, load_constants
from ppdiffusers_tome.merging.partition import Partition


@dataclass(frozen=True)
class ChosenKeys:
    """A ``TokenReduction`` to the tokens that give keys and values."""

    kept: paddle.Tensor  # int64 [left], tokens, the same in every image
    batch: int
    num_tokens: int
    keeps_queries: ClassVar[bool] = True

    @property
    def num_left(self) -> int:
        return self.kept.shape[0]

    @property
    def positions(self) -> paddle.Tensor:
        return self.kept.unsqueeze(0)

    def reduce(self, x: paddle.Tensor) -> paddle.Tensor:
        return paddle.index_select(x, self.kept, axis=1)

    def restore(self, y: paddle.Tensor) -> paddle.Tensor:
        return y

    def reduce_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        return paddle.index_select(mask, self.kept, axis=mask.ndim - 1)


def select_key_tokens(partition: Partition, num_dropped: int, *, frames: int = 1) -> paddle.Tensor:
    """Select tokens for keys: destinations, evenly spread sources, the prefix.

    Sources in no cell give as large a share of the keys as of the tokens: with a stride of 3 the last of 64 columns has
    no destination. With random destinations they are different at every timestep, too: errors that are the same in
    every step add up in the image.

    Args:
        partition: of the grid; its S sources are listed cell by cell.
        num_dropped: how many sources give none, ``1 <= num_dropped <= S``.
        frames: how many such grids an image's tokens hold, one after the other; the same tokens of each give keys.

    Returns:
        int64 ``[tokens - num_dropped]``.
    """
    num_sources, num_destinations = partition.sources.shape[0], partition.destinations.shape[0]
    num_kept, num_rest = num_sources - num_dropped, partition.num_rest
    chosen = load_constants(_choose_sources(num_kept, num_sources, num_destinations, num_rest))
    parts = [partition.destinations]
    if chosen.inside is not None:
        parts.append(paddle.gather(partition.sources, chosen.inside))
    if chosen.outside is not None:
        index = chosen.outside
        if partition.random_numbers is not None:
            index = (index + partition.random_numbers[:1]) % num_rest
        parts.append(paddle.gather(partition.sources, index + (num_sources - num_rest)))
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
def _choose_sources(count: int, num_sources: int, num_destinations: int, num_rest: int) -> _ChosenSources:
    share = (num_destinations + count) / (num_destinations + num_sources)
    outside = min(count, round(num_rest * share))

    def spread_evenly(count: int, number: int) -> np.ndarray | None:
        return np.arange(count, dtype=np.int64) * number // count if count else None

    return _ChosenSources(spread_evenly(count - outside, num_sources - num_rest), spread_evenly(outside, num_rest))
