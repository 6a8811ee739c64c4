"""Matching: who was merged with whom, as integer maps, and how tokens go there and back. Knows no model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import paddle

from ppdiffusers_tome.merging.methods import KEEP, MEAN, NORM

HALF = (paddle.float16, paddle.bfloat16)
_recorded_as_run: ContextVar[bool] = ContextVar("recorded_as_run", default=False)


@dataclass(frozen=True)
class Matching:
    """Groups of tokens, one group a merged token.

    The order inside the merged sequence is free (attention and feed-forward layers do not see it), so one flat map
    serves both ways: merging adds rows into their owners, unmerging reads them back.

    Attributes:
        owner: int ``[batch * tokens]``, the row of the merged sequence, counted over the whole batch, that holds
            each token.
        inverse_count: float32 ``[batch * left, 1]``, one over the size of each group.
        order: int64 ``[batch, tokens]``, of frames that merge by themselves ``[batch * frames, tokens of a frame]``;
            tokens counted over the whole batch: those merged away, then of each group its destination, or its only
            token, in the order of the merged sequence.
        batch: number of images; -1 in a program that is recorded for any number.
        num_tokens: tokens before merging, N.
        num_merged: tokens merged away; N - num_merged are left.

    Example:
        >>> matching = Matching(
        ...     owner=paddle.to_tensor([0, 1, 0, 1]), inverse_count=paddle.to_tensor([[0.5], [0.5]]),
        ...     order=paddle.to_tensor([[2, 3, 0, 1]]), batch=1, num_tokens=4, num_merged=2,
        ... )
        >>> merged = matching.merge(paddle.to_tensor([[[1.0], [2.0], [3.0], [4.0]]]))
        >>> list(merged.shape), matching.unmerge(merged).flatten().tolist()
        ([1, 2, 1], [2.0, 3.0, 2.0, 3.0])
    """

    owner: paddle.Tensor
    inverse_count: paddle.Tensor
    order: paddle.Tensor
    batch: int
    num_tokens: int
    num_merged: int

    @property
    def num_left(self) -> int:
        """Tokens after merging."""
        return self.num_tokens - self.num_merged

    @property
    def positions(self) -> paddle.Tensor:
        """int64 ``[batch, left]``: the token whose place a merged token takes, counted within its image."""
        return (self._kept % self.num_tokens).reshape([self.batch, self.num_left])

    @property
    def log_group_sizes(self) -> paddle.Tensor:
        """float32 ``[batch, left]``: the logarithm of each group's size."""
        return -paddle.log(self.inverse_count).reshape([self.batch, self.num_left])

    def unfold_frames(self, frames: int) -> Matching:
        """The same for a sequence of frames, where it was made of each frame as an image of its own."""
        return replace(
            self, batch=self.batch // frames, num_tokens=self.num_tokens * frames,
            num_merged=self.num_merged * frames,
        )  # fmt: skip

    def fits(self, x: paddle.Tensor) -> bool:
        """True when ``x`` is ``[batch, tokens, channels]`` with this matching's batch and tokens."""
        return x.ndim == 3 and sizes_match(x.shape[0], self.batch) and x.shape[1] == self.num_tokens

    def merge(self, x: paddle.Tensor, how: str = MEAN) -> paddle.Tensor:
        """Make one token of each group.

        Args:
            x: ``[batch, tokens, channels]``, any float type.
            how: ``MEAN``; ``NORM``, the mean at the mean length of the group's tokens; ``KEEP``, the destination alone.

        Returns:
            ``[batch, left, channels]`` of the same type.
        """
        if how == KEEP:
            merged = paddle.gather(self._rows(x), self._kept)
        else:
            merged = self._means(x)
            if how == NORM:
                length = self._means(_length(x))
                merged = merged * (length / paddle.clip(_length(merged), min=1e-12))
            merged = merged.astype(x.dtype) if x.dtype in HALF else merged
        return merged.reshape([self.batch, self.num_left, x.shape[2]])

    def unmerge(self, y: paddle.Tensor) -> paddle.Tensor:
        """Give every token of a group the group's value.

        Args:
            y: ``[batch, left, channels]``, any float type.

        Returns:
            ``[batch, tokens, channels]`` of the same type.
        """
        channels = y.shape[2]
        rows = paddle.gather(y.reshape([-1, channels]), self.owner)
        return rows.reshape([self.batch, self.num_tokens, channels])

    def merge_mask(self, mask: paddle.Tensor, *, keeps_queries: bool = False) -> paddle.Tensor:
        """Merge an attention bias as the tokens were merged: a group is left out when any of its tokens is.

        Args:
            mask: ``[batch or batch * heads, 1 or tokens, tokens]``, 0 to keep and a large negative number to leave
                out.
            keys_only: whether every query is kept.

        Returns:
            ``[same, 1 or left, left]``; with ``keeps_queries``, ``[same, same, left]``.
        """
        repeats = mask.shape[0] // self.batch
        if mask.shape[0] == 1 and self.batch > 1:
            mask, repeats = mask.expand([self.batch, *mask.shape[1:]]), 1
        # Heads of one image become channels of that image, as merging wants them.
        query_tokens = mask.shape[1]
        keys_first = mask.reshape([self.batch, repeats * query_tokens, self.num_tokens]).transpose([0, 2, 1])
        merged = self._strongest(keys_first).transpose([0, 2, 1])
        merged = merged.reshape([self.batch, repeats, query_tokens, self.num_left])
        if query_tokens == self.num_tokens and not keeps_queries:
            queries_first = merged.transpose([0, 2, 1, 3]).reshape([self.batch, query_tokens, repeats * self.num_left])
            merged = self._strongest(queries_first).reshape([self.batch, self.num_left, repeats, self.num_left])
            merged = merged.transpose([0, 2, 1, 3])
        return merged.reshape([self.batch * repeats, -1, self.num_left])

    @property
    def _kept(self) -> paddle.Tensor:
        """int64 ``[batch * left]``: of each group its destination, or its only token."""
        return self.order[:, self.num_merged * self.order.shape[1] // self.num_tokens :].flatten()

    def _rows(self, x: paddle.Tensor) -> paddle.Tensor:
        """``[batch, tokens, channels]`` as ``[batch * tokens, channels]``."""
        # A program may know the batch of these tokens, but not that those of another layer have the same.
        num_rows = -1 if self.batch < 0 else self.batch * self.num_tokens
        return x.reshape([num_rows, x.shape[2]])

    def _means(self, x: paddle.Tensor) -> paddle.Tensor:
        """The mean of every group, ``[batch * left, channels]``, float32 for half precision."""
        sums = self._sums(x)
        weights = self.inverse_count.astype("float64") if sums.dtype == paddle.float64 else self.inverse_count
        return sums.multiply_(weights) if can_write_in_place(x) else sums * weights

    def _sums(self, x: paddle.Tensor) -> paddle.Tensor:
        """The sum of every group, ``[batch * left, channels]``, float32 for half precision."""
        rows = self._rows(x)
        if x.dtype in HALF:
            # A flat background may put thousands of tokens in one group: in half precision the sum would overflow
            # or stop growing.
            rows = rows.astype("float32")
        return scatter_rows(rows, self.owner, dim_size(self.inverse_count, 0), add=True, in_place=can_write_in_place(x))

    def _strongest(self, bias: paddle.Tensor) -> paddle.Tensor:
        """The bias of every group, no weaker than any of its tokens': a mean would fade out in a large group."""
        sums = self._sums(bias)
        sums = paddle.maximum(sums, bias.min().astype(sums.dtype))
        return sums.astype(bias.dtype).reshape([self.batch, self.num_left, bias.shape[2]])


def scatter_rows(
    updates: paddle.Tensor, index: paddle.Tensor, num_rows: int | paddle.Tensor,
    *, add: bool = False, in_place: bool = False,
) -> paddle.Tensor:  # fmt: skip
    """``num_rows`` rows; row ``index[i]`` is ``updates[i]`` or, to ``add``, the sum of all such. Each must be named.

    ``in_place`` takes one buffer where otherwise there are two.
    """
    shape = [num_rows, *updates.shape[1:]]
    if in_place:
        # Paddle sets the rows that it adds to, here all, to zero first.
        return paddle.scatter_(paddle.empty(shape, dtype=updates.dtype), index, updates, overwrite=not add)
    return paddle.scatter(paddle.zeros(shape, dtype=updates.dtype), index, updates, overwrite=not add)


def dim_size(x: paddle.Tensor, axis: int) -> int | paddle.Tensor:
    """How long ``x`` is along an axis; int32 ``[]`` in a program that is recorded for any length of it."""
    return x.shape[axis] if x.shape[axis] >= 0 else paddle.shape(x)[axis]


def can_write_in_place(x: paddle.Tensor | None = None) -> bool:
    """True when what is made from ``x`` may be made in place: no gradient and no program is recorded."""
    if not paddle.in_dynamic_mode():
        return _recorded_as_run.get()
    return x is None or x.stop_gradient or not paddle.is_grad_enabled()


@contextmanager
def trace_with_inplace() -> Iterator[None]:
    """Programs recorded meanwhile write in place as a picture's merging does: to count operators, not to be run."""
    token = _recorded_as_run.set(True)
    try:
        yield
    finally:
        _recorded_as_run.reset(token)


def sizes_match(one: int, other: int) -> bool:
    """Whether two lengths are equal; -1 is one that stays open in a program."""
    return one == other or -1 in (one, other)


def _length(x: paddle.Tensor) -> paddle.Tensor:
    """The Euclidean length of tokens ``[..., channels]``, ``[..., 1]``, in float32 at least."""
    wide = x.astype("float32") if x.dtype in HALF else x
    return paddle.sqrt((wide * wide).sum(axis=-1, keepdim=True))
