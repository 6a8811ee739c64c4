"""The protocol of a reduction, which every method makes of a block's tokens."""

from typing import Protocol

import paddle


class TokenReduction(Protocol):
    """The reduction of a block's tokens to fewer, and the way back."""

    @property
    def batch(self) -> int:
        """The number of images; -1 matches any (dynamic dimension)."""

    @property
    def num_tokens(self) -> int:
        """The tokens of an image before the reduction, those before the grid included."""

    @property
    def num_left(self) -> int:
        """The tokens of an image after it."""

    @property
    def keeps_queries(self) -> bool:
        """True where only keys and values are reduced and every query stays."""

    @property
    def positions(self) -> paddle.Tensor:
        """int64 ``[batch or 1, left]``: the positions of the tokens left."""

    def reduce(self, x: paddle.Tensor) -> paddle.Tensor:
        """Reduce ``[batch, tokens, channels]``, any float type, to ``[batch, left, channels]``."""

    def restore(self, y: paddle.Tensor) -> paddle.Tensor:
        """Restore all tokens of ``[batch, left, channels]``; return ``y`` with ``keeps_queries``."""

    def reduce_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        """Reduce an attention bias, 0 to keep and a large negative number to mask.

        It is ``[batch or batch * heads, 1 or tokens, tokens]``; where every query stays, its rows do.
        """
