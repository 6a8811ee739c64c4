"""The protocol of all methods: attention sees fewer tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod

import paddle

from ppdiffusers_tome.merging.methods import MEAN


class TokenReduction(ABC):
    """A reduction of the tokens that attention sees.

    Attributes:
        batch: number of images; -1 matches any (dynamic dimension).
        num_tokens: tokens of an image before the reduction, those before the grid included.
        keeps_queries: True where only keys and values are reduced and every query stays.
    """

    batch: int
    num_tokens: int
    keeps_queries: bool

    @property
    @abstractmethod
    def uniform_groups(self) -> bool:
        """True where no group has twice as many tokens as another, so that attention needs no weights.

        Softmax does not see a size that is the same for all keys.
        """

    @property
    @abstractmethod
    def num_left(self) -> int:
        """Tokens of an image after the reduction."""

    @property
    @abstractmethod
    def positions(self) -> paddle.Tensor:
        """int64 ``[batch or 1, left]``: the position of each token left."""

    @property
    @abstractmethod
    def log_group_sizes(self) -> paddle.Tensor:
        """float32 ``[batch or 1, left]``: the logarithm of each group's size."""

    @abstractmethod
    def reduce(self, x: paddle.Tensor, combine: str = MEAN) -> paddle.Tensor:
        """Reduce ``[batch, tokens, channels]`` to ``[batch, left, channels]`` of the same float type.

        ``combine``, one of ``COMBINE_MODES``, is for reductions that make one token of a group.
        """

    @abstractmethod
    def restore(self, y: paddle.Tensor) -> paddle.Tensor:
        """Give every token its result; ``y`` itself where every query stays."""

    @abstractmethod
    def reduce_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        """Reduce an attention bias; one masked token masks its group.

        Args:
            mask: ``[batch or batch * heads, 1 or tokens, tokens]``, 0 to keep and a large negative number to mask.

        Returns:
            ``[batch or batch * heads, 1 or left, left]``; where every query stays, all rows of ``mask`` are left.
        """

    def fits(self, x: paddle.Tensor) -> bool:
        """Return True for ``[batch, tokens, channels]`` of this batch and number of tokens."""
        if x.ndim != 3 or x.shape[1] != self.num_tokens:
            return False
        return x.shape[0] == self.batch or -1 in (x.shape[0], self.batch)
