"""No matching at all: which tokens give keys and values is known from the grid (see ``methods/todo.py``)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.constants import Constants
from ppdiffusers_tome.matching import Keys
from ppdiffusers_tome.paddle_calls import without_gradients
from ppdiffusers_tome.partition import Partition


@without_gradients
def chosen(partition: Partition, num_dropped: int, constants: Constants | None = None) -> paddle.Tensor:
    """The tokens that stay keys, int64 ``[tokens - num_dropped]``: destinations, evenly spread sources, and the prefix.

    Args:
        partition: of the grid; its sources stand cell by cell.
        num_dropped: how many of S sources are no keys, ``1 <= num_dropped <= S``.
        constants: as in ``partition.random_partition``.
    """
    num_sources = partition.sources.shape[0]
    parts = [partition.destinations]
    if num_dropped < num_sources:
        evenly = (constants or Constants())(_evenly(num_sources, num_sources - num_dropped))
        parts.append(paddle.gather(partition.sources, evenly))
    if partition.prefix:
        parts.append(paddle.arange(partition.prefix, dtype="int64"))
    return paddle.concat(parts) if len(parts) > 1 else parts[0]


def match(x: paddle.Tensor, chosen: paddle.Tensor) -> Keys:
    """``chosen`` of the block's input ``[batch, tokens, channels]``."""
    return Keys(chosen, x.shape[0], x.shape[1])


@lru_cache(maxsize=32)
def _evenly(number: int, some: int) -> np.ndarray:
    """``some`` of the numbers below ``number``, spread evenly, int64."""
    return np.arange(some, dtype=np.int64) * number // some
