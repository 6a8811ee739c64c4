"""ToMe's bipartite soft matching (Token Merging for Fast Stable Diffusion, Bolya & Hoffman 2023, section 3).

Every source finds its most similar destination (cosine); the most similar sources merge into theirs. The result
equals ``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE) for the same destinations.
"""

from __future__ import annotations

import paddle

from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.partition import Partition


@paddle.no_grad()
def match(x: paddle.Tensor, partition: Partition, num_merged: int) -> Matching:
    """Decide which tokens merge.

    Args:
        x: ``[batch, tokens, channels]``, the block's input, any float type.
        partition: the sources and destinations of the grid, S + D = tokens.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.

    Returns:
        The matching of ``num_merged`` sources with their destinations.
    """
    batch, num_tokens, _ = x.shape
    similarity, best = _most_similar(x, partition)
    num_sources, num_destinations = similarity.shape[1], num_tokens - similarity.shape[1]
    num_kept, num_left = num_sources - num_merged, num_tokens - num_merged
    # The merged sequence is [kept sources, destinations]. A merged source goes where its destination stands; a
    # kept one to a place of its own, by its rank.
    rank = _inverse(paddle.argsort(similarity, axis=1, descending=True))
    place = paddle.where(rank < num_merged, best + num_kept, rank - num_merged)
    own = paddle.arange(num_kept, num_left, dtype="int64").unsqueeze(0).expand([batch, num_destinations])
    place = paddle.index_select(paddle.concat([place, own], axis=1), partition.position, axis=1)
    images = paddle.arange(batch, dtype="int64").unsqueeze(1) * num_left
    owner = (place + images).flatten().astype("int32")
    count = paddle.scatter(
        paddle.zeros([batch * num_left], dtype="float32"),
        owner,
        paddle.ones([batch * num_tokens], dtype="float32"),
        overwrite=False,
    )
    return Matching(owner, (1.0 / count).unsqueeze(1), batch, num_tokens, num_merged)


def _most_similar(x: paddle.Tensor, partition: Partition) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Cosine to the most similar destination, ``[batch, S]`` float, and its number, ``[batch, S]`` int64."""
    # Squares are summed in float32: 65504, the largest float16, is reached by 256 channels of value 16.
    wide = x.astype("float32")
    inverse_norm = paddle.rsqrt((wide * wide).sum(axis=-1, keepdim=True) + 1e-12)
    unit = (wide * inverse_norm).astype(x.dtype)
    sources = paddle.index_select(unit, partition.sources, axis=1)
    destinations = paddle.index_select(unit, partition.destinations, axis=1)
    cosine = paddle.matmul(sources, destinations, transpose_y=True)
    return cosine.max(axis=-1), cosine.argmax(axis=-1)


def _inverse(order: paddle.Tensor) -> paddle.Tensor:
    """Ranks from an order: the inverse of each row's permutation, ``[batch, S]`` int64, without a second sort."""
    batch, length = order.shape
    ranks = paddle.arange(length, dtype="int64").unsqueeze(0).expand([batch, length])
    images = paddle.arange(batch, dtype="int64").unsqueeze(1) * length
    flat = paddle.scatter(paddle.zeros([batch * length], dtype="int64"), (order + images).flatten(), ranks.flatten())
    return flat.reshape([batch, length])
