"""What bipartite methods share: which destination a source is most like, and merging the sources that are most alike.

Equal to ``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE) where all are compared with all.
"""

from __future__ import annotations

import paddle

from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.partition import Partition


def rows_at_once(x: paddle.Tensor, num_sources: int, *, on_a_cpu: int) -> int:
    """How many of ``num_sources`` sources of each image to compare at once on the device that holds ``x``.

    On a CPU few enough that their products stay in the cache and no large block of memory is taken and given back in
    every block of the model. On a GPU, where launches count, all.
    """
    return num_sources if x.place.is_gpu_place() else min(on_a_cpu, num_sources)


def unit(x: paddle.Tensor) -> paddle.Tensor:
    """Tokens ``[groups, tokens, channels]`` at length one, of the same type."""
    return (x * _inverse_norm(x)).astype(x.dtype)


def nearest(sources: paddle.Tensor, destinations: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Find the destination that each source is most like.

    Args:
        sources: ``[groups, S, channels]``, any float type; a group is an image or a part of one.
        destinations: ``[groups, D, channels]`` of length one, the same type.

    Returns:
        The cosine, ``[groups, S]`` float32, and the destination's number in its group, ``[groups, S]`` int64.
    """
    # A source's own length does not change which destination is nearest, only how sources rank: float32 scales it
    # afterwards, one number a source. float16 could overflow on the way, so there it is scaled before.
    scale = _inverse_norm(sources)
    if sources.dtype == paddle.float16:
        sources, scale = (sources * scale).astype(sources.dtype), paddle.ones_like(scale)
    products = paddle.matmul(sources, destinations, transpose_y=True)
    best = products.argmax(axis=-1)
    # Reading the maximum at its place is cheaper than a second pass over all products.
    first = paddle.arange(best.shape[0] * best.shape[1], dtype="int64") * products.shape[2]
    highest = paddle.gather(products.flatten(), best.flatten() + first).reshape(best.shape)
    return highest.astype("float32") * scale.squeeze(-1), best


def merge_most_alike(
    similarity: paddle.Tensor, best: paddle.Tensor, partition: Partition, num_merged: int
) -> Matching:
    """Merge the sources that are most like their destinations into them.

    Args:
        similarity: ``[batch, S]`` float32, of each source to its destination; the sources as in ``partition``.
        best: ``[batch, S]`` int64, the number of that destination in ``partition``.
        partition: the sources and destinations of the grid.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
    """
    batch, num_sources = similarity.shape
    num_tokens = partition.position.shape[0]
    num_destinations = num_tokens - num_sources
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


def _inverse_norm(x: paddle.Tensor) -> paddle.Tensor:
    """One over each token's length, ``[batch, tokens, 1]`` float32.

    Squares are summed in float32: 65504, the largest float16, is reached by 256 channels of value 16.
    """
    wide = x.astype("float32")
    return paddle.rsqrt((wide * wide).sum(axis=-1, keepdim=True) + 1e-12)


def _inverse(order: paddle.Tensor) -> paddle.Tensor:
    """Ranks from an order: the inverse of each row's permutation, ``[batch, S]`` int64, without a second sort."""
    batch, length = order.shape
    ranks = paddle.arange(length, dtype="int64").unsqueeze(0).expand([batch, length])
    images = paddle.arange(batch, dtype="int64").unsqueeze(1) * length
    flat = paddle.scatter(paddle.zeros([batch * length], dtype="int64"), (order + images).flatten(), ranks.flatten())
    return flat.reshape([batch, length])
