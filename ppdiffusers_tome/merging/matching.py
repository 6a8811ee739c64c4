"""Matchings: groups of similar tokens as integer maps, which merge and restore them."""

from dataclasses import dataclass

import paddle
from paddle import in_dynamic_mode as works_in_place  # tests/benchmarks/gpu_trace.py replaces it

from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.similarity import HALF, find_nearest
from ppdiffusers_tome.merging.tiles import Tiles, find_nearest_in_tiles


@dataclass(frozen=True, eq=False)
class Matching:
    """Groups of tokens, one group a merged token.

    The order inside the merged sequence is free (attention and feed-forward layers do not see it), so one flat map
    serves both ways: merging adds rows into their owners, restoring reads them back.

    Attributes:
        owner: int ``[batch * tokens]``, the row of the merged sequence, counted over the whole batch, that holds
            each token.
        inverse_count: float32 ``[batch * left, 1]``, one over the size of each group.
        order: int64 ``[batch, tokens]``, of frames that merge by themselves ``[batch * frames, tokens of a frame]``;
            tokens counted over the whole batch: those merged away, then of each group its destination, or its only
            token, in the order of the merged sequence.
        batch, num_tokens, num_left, keeps_queries: as of ``TokenReduction``.

    Example:
        >>> matching = Matching(
        ...     owner=paddle.to_tensor([0, 1, 0, 1]), inverse_count=paddle.to_tensor([[0.5], [0.5]]),
        ...     order=paddle.to_tensor([[2, 3, 0, 1]]), batch=1, num_tokens=4, num_left=2,
        ... )
        >>> merged = matching.reduce(paddle.to_tensor([[[1.0], [2.0], [3.0], [4.0]]]))
        >>> list(merged.shape), matching.restore(merged).flatten().tolist()
        ([1, 2, 1], [2.0, 3.0, 2.0, 3.0])
    """

    owner: paddle.Tensor
    inverse_count: paddle.Tensor
    order: paddle.Tensor
    batch: int
    num_tokens: int
    num_left: int
    keeps_queries: bool = False

    @property
    def positions(self) -> paddle.Tensor:
        """int64 ``[batch, left]``: of each group the position of its destination."""
        kept = self.order[:, -(self.num_left * self.order.shape[1] // self.num_tokens) :].flatten()
        return (kept % self.num_tokens).reshape([self.batch, self.num_left])

    @property
    def log_group_sizes(self) -> paddle.Tensor:
        """float32 ``[batch, left]``: the logarithm of each group's size."""
        return -paddle.log(self.inverse_count).reshape([self.batch, self.num_left])

    def reduce(self, x: paddle.Tensor) -> paddle.Tensor:
        """Compute the mean of each group."""
        # A program may know the batch of these tokens, but not that those of another layer have the same.
        rows = x.reshape([-1 if self.batch < 0 else self.batch * self.num_tokens, x.shape[2]])
        # A flat background may put thousands of tokens in one group: in half precision the sum would overflow or stop
        # growing.
        rows = rows.astype("float32") if x.dtype in HALF else rows
        merged = scatter_rows(rows, self.owner, like=self.inverse_count, add=True)
        weights = self.inverse_count.astype("float64") if x.dtype == paddle.float64 else self.inverse_count
        # In place where no gradient needs the sums, to save a buffer.
        merged = merged.multiply_(weights) if works_in_place() and merged.stop_gradient else merged * weights
        merged = merged if merged.dtype == x.dtype else merged.astype(x.dtype)
        return merged.reshape([self.batch, self.num_left, x.shape[2]])

    def restore(self, y: paddle.Tensor) -> paddle.Tensor:
        """Give every token its group's result."""
        if self.keeps_queries:
            return y
        channels = y.shape[2]
        rows = paddle.gather(y.reshape([-1, channels]), self.owner)
        return rows.reshape([self.batch, self.num_tokens, channels])

    def reduce_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        """Reduce an attention bias; one masked token masks its group."""
        heads = mask.shape[0] // self.batch
        if mask.shape[0] == 1 and self.batch > 1:
            mask, heads = mask.expand([self.batch, *mask.shape[1:]]), 1
        # Heads of one image become channels of that image, as merging wants them.
        queries = mask.shape[1]
        keys_first = mask.reshape([self.batch, heads * queries, self.num_tokens]).transpose([0, 2, 1])
        merged = self._mask_groups(keys_first).transpose([0, 2, 1])
        merged = merged.reshape([self.batch, heads, queries, self.num_left])
        if queries == self.num_tokens and not self.keeps_queries:
            queries_first = merged.transpose([0, 2, 1, 3]).reshape([self.batch, queries, heads * self.num_left])
            merged = self._mask_groups(queries_first).reshape([self.batch, self.num_left, heads, self.num_left])
            merged = merged.transpose([0, 2, 1, 3])
        return merged.reshape([-1, merged.shape[2], self.num_left])

    def _mask_groups(self, bias: paddle.Tensor) -> paddle.Tensor:
        # A mean would fade in a large group.
        rows = bias.astype("float32") if bias.dtype in HALF else bias
        sums = scatter_rows(rows.flatten(0, 1), self.owner, like=self.inverse_count, add=True)
        sums = paddle.maximum(sums, bias.min().astype(sums.dtype))
        return sums.astype(bias.dtype).reshape([self.batch, self.num_left, bias.shape[2]])


def match_tokens(
    x: paddle.Tensor, partition: Partition, num_merged: int, tiles: Tiles | None = None, frames: int = 1,
    keeps_queries: bool = False,
) -> Matching:  # fmt: skip
    """Decide which tokens merge, by ToMe's bipartite soft matching.

    Every source finds its most similar destination (cosine), and the most similar sources merge into theirs: Token
    Merging for Fast Stable Diffusion (Bolya & Hoffman 2023), section 3. Where all are compared with all, it equals
    ``bipartite_soft_matching_random2d`` of tomesd 0.1.3 (MIT, see NOTICE).

    Args:
        x: ``[batch, tokens, channels]``, the block's input, any float type.
        partition: the S sources and the destinations of the grid.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        tiles: of the partition, to compare sources with the destinations in and beside their tiles only; None compares
            all with all.
        frames: how many such grids an image's tokens hold, one after the other. Each merges by itself.
        keeps_queries: as in ``Matching``.

    Example:
        >>> from ppdiffusers_tome.merging.grid import Grid
        >>> from ppdiffusers_tome.merging.partition import regular_partition
        >>> x = paddle.to_tensor([[[1.0, 0.0], [1.0, 0.1], [0.2, 1.0], [0.0, 1.0]]])
        >>> match_tokens(x, regular_partition(Grid(2, 2), sx=2, sy=2), num_merged=1).owner.tolist()
        [2, 2, 0, 1]
    """
    with paddle.no_grad():  # as a decorator it would put back the mode of another thread
        if frames > 1:
            x = x.reshape([-1, x.shape[1] // frames, x.shape[2]])  # frames are images of their own
        # Paddle multiplies no half precision on a CPU. A traced tensor has no place.
        if x.dtype in HALF and paddle.in_dynamic_mode() and x.place.is_cpu_place():
            x = x.astype("float32")
        # The nearest destination of every source, an index in those of the partition.
        if tiles is None:
            sources = partition.sources
            cosine, nearest = find_nearest(x, sources, partition.destinations)
        else:
            sources, cosine, nearest = find_nearest_in_tiles(x, partition, tiles)
        # Tokens in the order [sources by rank, destinations, tokens before the grid], counted over the whole batch.
        stay = partition.destinations
        if partition.prefix:
            stay = paddle.concat([stay, paddle.arange(partition.prefix, dtype="int64")])
        batch, num_tokens, num_stay = x.shape[0] if x.shape[0] >= 0 else paddle.shape(x)[0], x.shape[1], stay.shape[0]
        num_sources, num_left = num_tokens - num_stay, num_tokens - num_merged
        rank = paddle.argsort(cosine, axis=1, descending=True)
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


def scatter_rows(
    updates: paddle.Tensor, index: paddle.Tensor, like: paddle.Tensor, *, add: bool = False
) -> paddle.Tensor:
    """Write ``updates[i]`` to row ``index[i]``, or add them there.

    Returns:
        As many rows as ``like``. Every row must be written at least once, without ``add`` exactly once.
    """
    shape = [like.shape[0] if like.shape[0] >= 0 else paddle.shape(like)[0], *updates.shape[1:]]
    if not works_in_place():
        return paddle.scatter(paddle.zeros(shape, dtype=updates.dtype), index, updates, overwrite=not add)
    # In place, as that takes one buffer and not two. Paddle's own kernels set the rows that they add to, here all, to
    # zero first; a plugin's may not, and whoever searches NaNs with Paddle's flag would find those of an empty buffer.
    is_checked = paddle.base.core.globals()["FLAGS_check_nan_inf"]
    create = paddle.empty if paddle.get_device().startswith(("cpu", "gpu")) and not is_checked else paddle.zeros
    return paddle.scatter_(create(shape, dtype=updates.dtype), index, updates, overwrite=not add)
