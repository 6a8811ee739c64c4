"""No matching at all: which tokens give keys and values is known from the grid (see ``methods/todo.py``)."""

from __future__ import annotations

import numpy as np
import paddle

from ppdiffusers_tome.matching import Keys
from ppdiffusers_tome.partition import Partition


@paddle.no_grad()
def chosen(partition: Partition, num_dropped: int) -> paddle.Tensor:
    """The tokens that stay keys, int64 ``[tokens - num_dropped]``: destinations, evenly spread sources, and the prefix.

    Args:
        partition: of the grid; its sources stand cell by cell.
        num_dropped: how many of S sources are no keys, ``1 <= num_dropped <= S``.
    """
    num_sources = partition.sources.shape[0]
    parts = [partition.destinations]
    if num_dropped < num_sources:
        num_kept = num_sources - num_dropped
        even = np.arange(num_kept, dtype=np.int64) * num_sources // num_kept
        parts.append(paddle.gather(partition.sources, paddle.to_tensor(even)))
    if partition.prefix:
        parts.append(paddle.arange(partition.prefix, dtype="int64"))
    return paddle.concat(parts) if len(parts) > 1 else parts[0]


def match(x: paddle.Tensor, chosen: paddle.Tensor) -> Keys:
    """``chosen`` of the block's input ``[batch, tokens, channels]``."""
    return Keys(chosen, x.shape[0], x.shape[1])
