"""What bipartite matchers share: merging the sources that are most like their destinations.

Equal to ``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE) where all are compared with all.
"""

from __future__ import annotations

import paddle

from ppdiffusers_tome.merging.matching import Matching, can_write_in_place, dim_size, scatter_rows
from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.similarity import gather_last_axis


def merge_most_similar(
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
    batch, num_stay = dim_size(similarity, 0), stay.shape[0]
    num_sources, num_left = num_tokens - num_stay, num_tokens - num_merged
    order = paddle.argsort(similarity, axis=1, descending=True)
    if order.shape[1] > num_sources:
        order = order[:, :num_sources]
    # The merged sequence of an image is [kept sources by rank, destinations, what stood before the grid]; a merged
    # source goes where its destination stands.
    rows = paddle.arange(batch * num_left, dtype="int64").reshape([-1, num_left])
    first_destination = num_left - num_stay
    into = gather_last_axis(best, order[:, :num_merged]) + rows[:, first_destination : first_destination + 1]
    by_rank = paddle.gather(sources, order.flatten()).reshape([-1, num_sources])
    tokens = paddle.concat([by_rank, stay.unsqueeze(0).expand([batch, num_stay])], axis=1)
    tokens = tokens + paddle.arange(0, batch * num_tokens, num_tokens, dtype="int64").unsqueeze(1)
    places = paddle.concat([into, rows], axis=1).flatten().astype("int32")
    owner = scatter_rows(places, tokens.flatten(), batch * num_tokens, in_place=can_write_in_place())
    ones = paddle.ones([batch * num_tokens], dtype="float32")
    count = scatter_rows(ones, owner, batch * num_left, add=True, in_place=can_write_in_place())
    return Matching(owner, paddle.reciprocal(count).unsqueeze(1), tokens, similarity.shape[0], num_tokens, num_merged)
