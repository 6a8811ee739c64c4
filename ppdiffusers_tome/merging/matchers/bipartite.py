"""What bipartite methods share: which destination a source is most like, and merging the sources that are most alike.

Equal to ``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE) where all are compared with all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import paddle

from ppdiffusers_tome.merging.matching import HALF, Matching, may_write, scattered, size
from ppdiffusers_tome.merging.partition import Partition


def rows_at_once(num_sources: int, *, on_a_cpu: int) -> int:
    """How many of ``num_sources`` sources of each image to compare at once.

    On a CPU few enough that their products stay in the cache and no large block of memory is taken and given back in
    every block of the model. Elsewhere, where launches count, all; and in a program that is being recorded, which would
    hold the operators of every turn.
    """
    few = paddle.in_dynamic_mode() and paddle.get_device() == "cpu"
    return min(on_a_cpu, num_sources) if few else num_sources


def unit(x: paddle.Tensor) -> paddle.Tensor:
    """Tokens ``[groups, tokens, channels]`` at length one, of the same type."""
    wide, inverse_length = _measured(x)
    return (wide * inverse_length).astype(x.dtype) if x.dtype in HALF else wide * inverse_length


def nearest(sources: paddle.Tensor, destinations: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Find the destination that each source is most like.

    Args:
        sources: ``[groups, S, channels]``, any float type; a group is an image or a part of one.
        destinations: ``[groups, D, channels]`` of length one, the same type.

    Returns:
        The cosine, ``[groups, S]`` float32 (float64 for such sources), and the destination's number in its group,
        ``[groups, S]`` int64.
    """
    if sources.dtype == paddle.float16:  # a product of what is longer could overflow
        highest, best = _highest(unit(sources), destinations)
        return highest.astype("float32"), best
    # A source's own length does not change which destination is nearest, only how sources rank: scaling the highest
    # products, one number a source, is cheaper than scaling the sources.
    highest, best = _highest(sources, destinations)
    highest = highest.astype("float32") if sources.dtype in HALF else highest
    return highest * _measured(sources)[1].squeeze(-1), best


def joined(parts: Sequence[paddle.Tensor]) -> paddle.Tensor:
    """Parts ``[batch, some]`` side by side; one alone is not copied."""
    return paddle.concat(parts, axis=1) if len(parts) > 1 else parts[0]


def merge_most_alike(
    similarity: paddle.Tensor, best: paddle.Tensor, sources: paddle.Tensor, partition: Partition,
    *, num_tokens: int, num_merged: int, min_similarity: float | None = None,
) -> Matching | None:  # fmt: skip
    """Merge the sources that are most like their destinations into them.

    Args:
        similarity: ``[batch, S or more]`` float32, of each source to its destination. What stands in a column too many
            must be less than any similarity.
        best: ``[batch, S or more]`` int64, the number of that destination in ``destinations``.
        sources: int64 ``[S or more]``, the token of each column.
        partition: the grid's D destinations, and the P tokens before it, which stay.
        num_tokens: P + S + D.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        min_similarity: sources less like their destinations do not merge. All images then merge as many as the one
            that has fewest, so that they stay one tensor. Read on the host, so it waits for the device.

    Returns:
        The matching; None where ``min_similarity`` leaves nothing to merge.
    """
    if min_similarity is not None:
        alike = (similarity >= min_similarity).astype("int32").sum(axis=1)
        num_merged = min(num_merged, int(alike.min()))
        if num_merged == 0:
            return None
    stay = partition.destinations
    if partition.prefix:
        stay = paddle.concat([stay, paddle.arange(partition.prefix, dtype="int64")])
    batch, num_stay = size(similarity, 0), stay.shape[0]
    num_sources, num_left = num_tokens - num_stay, num_tokens - num_merged
    order = paddle.argsort(similarity, axis=1, descending=True)
    if order.shape[1] > num_sources:
        order = order[:, :num_sources]
    # The merged sequence of an image is [kept sources by rank, destinations, what stood before the grid]; a merged
    # source goes where its destination stands.
    rows = paddle.arange(batch * num_left, dtype="int64").reshape([-1, num_left])
    first_destination = num_left - num_stay
    into = _taken(best, order[:, :num_merged]) + rows[:, first_destination : first_destination + 1]
    by_rank = paddle.gather(sources, order.flatten()).reshape([-1, num_sources])
    tokens = paddle.concat([by_rank, stay.unsqueeze(0).expand([batch, num_stay])], axis=1)
    tokens = tokens + paddle.arange(0, batch * num_tokens, num_tokens, dtype="int64").unsqueeze(1)
    places = paddle.concat([into, rows], axis=1).flatten().astype("int32")
    owner = scattered(places, tokens.flatten(), batch * num_tokens, in_place=may_write())
    count = scattered(paddle.ones([batch * num_tokens]), owner, batch * num_left, add=True, in_place=may_write())
    return Matching(owner, paddle.reciprocal(count).unsqueeze(1), tokens, similarity.shape[0], num_tokens, num_merged)


def _highest(sources: paddle.Tensor, destinations: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """The highest product of each source with a destination, ``[groups, S]``, and that destination's number, int64."""
    products = paddle.matmul(sources, destinations, transpose_y=True)
    best = products.argmax(axis=-1)
    # Reading the maximum at its place is cheaper than a second pass over all products.
    return _taken(products, best), best


def _taken(x: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
    """``x[..., index]``: from ``[..., n]`` at int64 ``[..., k]``, or at ``[...]`` for one a row.

    Not ``take_along_axis``, which copies ``x`` and on Paddle 2.6 waits for the device to check the index.
    """
    num_rows = size(x, 0) * math.prod(x.shape[1:-1])
    first = paddle.arange(0, num_rows * x.shape[-1], x.shape[-1], dtype="int64").unsqueeze(-1)
    places = index.reshape([-1, index.shape[-1] if index.ndim == x.ndim else 1]) + first
    return paddle.gather(x.flatten(), places.flatten()).reshape(index.shape)


def _measured(x: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Tokens in float32 and one over each one's length, ``[groups, tokens, 1]`` float32.

    Squares are summed in float32: 65504, the largest float16, is reached by 256 channels of value 16.
    """
    wide = x.astype("float32") if x.dtype in HALF else x
    return wide, paddle.rsqrt((wide * wide).sum(axis=-1, keepdim=True) + 1e-12)
