"""Merging the sources that are most similar to their destinations.

Equal to ``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE) where all are compared with all.
"""

from __future__ import annotations

import paddle

from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.tensor_ops import can_write_in_place, dim_size, gather_last_axis, scatter_rows


def merge_most_similar(
    similarity: paddle.Tensor, best: paddle.Tensor, sources: paddle.Tensor, partition: Partition,
    *, num_tokens: int, num_merged: int, min_similarity: float | None = None,
) -> Matching | None:  # fmt: skip
    """Merge the sources that are most similar to their destinations into them.

    Args:
        similarity: ``[batch, S or more]`` float32, of each source to its destination. Padding columns must be below
            any cosine.
        best: ``[batch, S or more]`` int64, the index of that destination in ``partition.destinations``.
        sources: int64 ``[S or more]``, the token of each column.
        partition: the grid's D destinations, and the P tokens before it, which stay.
        num_tokens: P + S + D.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        min_similarity: sources less similar to their destinations do not merge. All images then merge as many as the
            one that has fewest, so that they stay one tensor. Read on the host, so it waits for the device.

    Returns:
        The matching; None where ``min_similarity`` leaves nothing to merge.
    """
    if min_similarity is not None:
        num_similar = (similarity >= min_similarity).astype("int32").sum(axis=1)
        num_merged = min(num_merged, int(num_similar.min()))
        if num_merged == 0:
            return None
    stay = partition.destinations
    if partition.prefix:
        stay = paddle.concat([stay, paddle.arange(partition.prefix, dtype="int64")])
    batch, num_stay = dim_size(similarity, 0), stay.shape[0]
    num_sources, num_left = num_tokens - num_stay, num_tokens - num_merged
    rank = paddle.argsort(similarity, axis=1, descending=True)
    if rank.shape[1] > num_sources:
        rank = rank[:, :num_sources]
    # The merged sequence of an image is [kept sources by rank, destinations, tokens before the grid]; a merged source
    # goes where its destination is.
    rows = paddle.arange(batch * num_left, dtype="int64").reshape([-1, num_left])
    first_destination = num_left - num_stay
    merged_into = gather_last_axis(best, rank[:, :num_merged]) + rows[:, first_destination : first_destination + 1]
    by_rank = paddle.gather(sources, rank.flatten()).reshape([-1, num_sources])
    order = paddle.concat([by_rank, stay.unsqueeze(0).expand([batch, num_stay])], axis=1)
    order = order + paddle.arange(0, batch * num_tokens, num_tokens, dtype="int64").unsqueeze(1)
    row_of = paddle.concat([merged_into, rows], axis=1).flatten().astype("int32")
    owner = scatter_rows(row_of, order.flatten(), batch * num_tokens, in_place=can_write_in_place())
    ones = paddle.ones([batch * num_tokens], dtype="float32")
    count = scatter_rows(ones, owner, batch * num_left, add=True, in_place=can_write_in_place())
    return Matching(owner, paddle.reciprocal(count).unsqueeze(1), order, similarity.shape[0], num_tokens, num_merged)
