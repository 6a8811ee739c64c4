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
    """

    batch: int
    num_tokens: int

    @property
    @abstractmethod
    def num_left(self) -> int:
        """Tokens of an image after the reduction."""

    @property
    @abstractmethod
    def keeps_queries(self) -> bool:
        """True where only keys and values are reduced and every query stays."""

    @property
    @abstractmethod
    def uniform_groups(self) -> bool:
        """True where all tokens left stand for equally many.

        Or as nearly as a grid can be cut. Group sizes then cancel in softmax where there are no other keys.
        """

    @property
    @abstractmethod
    def positions(self) -> paddle.Tensor:
        """int64 ``[batch or 1, left]``: whose place each token left takes.

        Tokens are counted within their image.
        """

    @property
    @abstractmethod
    def log_group_sizes(self) -> paddle.Tensor:
        """float32 ``[batch or 1, left]``: the logarithm of each group's size."""

    @abstractmethod
    def reduce(self, x: paddle.Tensor, combine: str = MEAN) -> paddle.Tensor:
        """Reduce ``[batch, tokens, channels]`` to ``[batch, left, channels]`` of the same type.

        Args:
            x: any float type.
            combine: one of ``COMBINE_MODES``, for reductions that make one token of a group.
        """

    @abstractmethod
    def restore(self, y: paddle.Tensor) -> paddle.Tensor:
        """Give every token its result, ``[batch, tokens, channels]``.

        This is the identity where every query stays.
        """

    @abstractmethod
    def reduce_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        """Reduce an attention bias as the tokens are reduced.

        A merged key is masked if any of its tokens is.

        Args:
            mask: ``[batch or batch * heads, 1 or tokens, tokens]``, 0 to keep and a large negative number to mask.

        Returns:
            ``[batch or batch * heads, 1 or left, left]``; where every query stays, all rows of ``mask`` are left.
        """

    def fits(self, x: paddle.Tensor) -> bool:
        """Return whether ``x`` is ``[batch, tokens, channels]`` with this batch and number of tokens."""
        return (
            x.ndim == 3
            and (x.shape[0] == self.batch or -1 in (x.shape[0], self.batch))
            and x.shape[1] == self.num_tokens
        )
