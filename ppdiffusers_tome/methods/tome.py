"""ToMe's bipartite soft matching (Token Merging for Fast Stable Diffusion, Bolya & Hoffman 2023, section 3).

Every source finds its most similar destination (cosine); the most similar sources merge into theirs. The result
equals ``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE) for the same destinations.
"""

from __future__ import annotations

import paddle

from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.partition import Partition

# How many sources are compared with all destinations at once on a CPU: few enough that their products stay in the
# cache and no large block of memory is taken and given back in every block of the model. A GPU, where launches count,
# takes all.
_CPU_ROWS = 512


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
    """Cosine to the most similar destination, ``[batch, S]`` float32, and its number, ``[batch, S]`` int64."""
    destinations = paddle.index_select(x, partition.destinations, axis=1)
    destinations = (destinations * _inverse_norm(destinations)).astype(x.dtype)
    num_sources = partition.sources.shape[0]
    rows = num_sources if x.place.is_gpu_place() else _CPU_ROWS
    found = [
        _nearest(paddle.index_select(x, partition.sources[start : start + rows], axis=1), destinations)
        for start in range(0, num_sources, rows)
    ]
    highest, best = (paddle.concat(parts, axis=1) if len(found) > 1 else parts[0] for parts in zip(*found, strict=True))
    return highest, best


def _nearest(sources: paddle.Tensor, destinations: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """The same for some of the sources, ``[batch, rows, channels]``, and all destinations, of length one."""
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
