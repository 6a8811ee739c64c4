"""ToMe's bipartite soft matching: which sources merge into which destinations.

Every source finds its most similar destination (cosine), and the most similar sources merge into theirs: Token Merging
for Fast Stable Diffusion (Bolya & Hoffman 2023), section 3. Where all are compared with all, it equals
``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE).
"""

import paddle

from ppdiffusers_tome.merging.matching import Matching, scatter_rows
from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.similarity import find_nearest, find_nearest_on_cpu
from ppdiffusers_tome.merging.tiles import Tiles


def match_tokens(
    x: paddle.Tensor, partition: Partition, num_merged: int, tiles: Tiles | None = None, frames: int = 1,
    keeps_queries: bool = False,
) -> Matching:  # fmt: skip
    """Decide which tokens merge.

    Args:
        x: ``[batch, tokens, channels]``, the block's input, any float type.
        partition: the S sources and the destinations of the grid.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        tiles: of the partition, to compare sources with the destinations in and beside their tiles only; None compares
            all with all.
        frames: how many such grids an image's tokens hold, one after the other. Each merges by itself.
        keeps_queries: as in ``Matching``.
    """
    with paddle.no_grad():  # as a decorator it would put back the mode of another thread
        if frames > 1:
            x = x.reshape([-1, x.shape[1] // frames, x.shape[2]])  # frames are images of their own
        # The nearest destination of every source, an index in those of the partition. These are on the default device,
        # which may be a GPU though the model is kept on the CPU.
        is_eager = paddle.in_dynamic_mode()
        is_on_cpu = is_eager and x.place.is_cpu_place() and partition.sources.place.is_cpu_place()
        find = find_nearest_on_cpu if is_on_cpu else find_nearest
        if tiles is None:
            sources = partition.sources
            similarity, nearest = find(x, sources, partition.destinations)
        else:
            sources = tiles.source_tokens
            similarity, nearest = find(x, sources, tiles.destination_tokens, tiles.num_tiles)
            nearest = paddle.gather(tiles.destinations, (nearest + tiles.tile_offset).flatten()).reshape(nearest.shape)
            if tiles.columns is not None:
                sources = partition.sources
                similarity = paddle.index_select(similarity, tiles.columns, axis=1)
                nearest = paddle.index_select(nearest, tiles.columns, axis=1)
        # Tokens in the order [sources by rank, destinations, tokens before the grid], counted over the whole batch.
        stay = partition.destinations
        if partition.prefix:
            stay = paddle.concat([stay, paddle.arange(partition.prefix, dtype="int64")])
        batch, num_tokens, num_stay = x.shape[0] if x.shape[0] >= 0 else paddle.shape(x)[0], x.shape[1], stay.shape[0]
        num_sources, num_left = num_tokens - num_stay, num_tokens - num_merged
        rank = paddle.argsort(similarity, axis=1, descending=True)
        by_rank = paddle.gather(sources, rank.flatten()).reshape([-1, num_sources])
        order = paddle.concat([by_rank, stay.unsqueeze(0).expand([batch, num_stay])], axis=1)
        order = order + paddle.arange(0, batch * num_tokens, num_tokens, dtype="int64").unsqueeze(1)
        # All but the first are the rows of the merged sequence; these go where their destinations are.
        rows = paddle.arange(batch * num_left, dtype="int64").reshape([-1, num_left])
        first_source = paddle.arange(0, batch * num_sources, num_sources, dtype="int64").unsqueeze(1)
        nearest = paddle.gather(nearest.flatten(), (rank[:, :num_merged] + first_source).flatten())
        first_destination = rows[:, num_left - num_stay : num_left - num_stay + 1]
        row_of_ordered = paddle.concat([nearest.reshape([-1, num_merged]) + first_destination, rows], axis=1)
        places = order.flatten()
        owner = scatter_rows(row_of_ordered.flatten().astype("int32"), places, like=places)
        ones = paddle.ones([batch * num_tokens], dtype="float32")
        count = scatter_rows(ones, owner, like=rows.flatten(), add=True)
        return Matching(
            owner, paddle.reciprocal(count).unsqueeze(1), order, x.shape[0] // frames, num_tokens * frames,
            num_left * frames, keeps_queries,
        )  # fmt: skip
