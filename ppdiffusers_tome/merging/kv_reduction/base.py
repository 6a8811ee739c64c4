"""What all ways to fewer keys and values have in common. All tokens give queries, so nothing is unmerged."""

from __future__ import annotations

from abc import ABC, abstractmethod

import paddle

from ppdiffusers_tome.merging.matching import sizes_match


class FewerKeys(ABC):
    """The keys and values of some tokens, or of groups of tokens.

    Attributes:
        batch: number of images; -1 in a program that is recorded for any number.
        num_tokens: all tokens, P before a grid and those of the grid.
    """

    batch: int
    num_tokens: int

    @property
    @abstractmethod
    def uniform_groups(self) -> bool:
        """Whether all keys stand for equally many tokens, or as nearly as a grid can be cut.

        It then cancels in softmax where there are no other keys.
        """

    @property
    @abstractmethod
    def num_left(self) -> int:
        """Tokens, or groups of them, that give keys and values."""

    @property
    @abstractmethod
    def positions(self) -> paddle.Tensor:
        """int64 ``[batch or 1, left]``: the token whose place each of them has."""

    @property
    @abstractmethod
    def log_group_sizes(self) -> paddle.Tensor:
        """float32 ``[batch or 1, left]``: the logarithm of how many tokens each of them stands for."""

    @abstractmethod
    def keys_of(self, x: paddle.Tensor) -> paddle.Tensor:
        """``[batch, tokens, channels]`` to ``[batch, left, channels]``, of which keys and values are made."""

    @abstractmethod
    def merge_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        """An attention bias for fewer keys, see ``Matching.merge_mask``.

        Args:
            mask: ``[batch or batch * heads, queries, tokens]``.

        Returns:
            ``[same, queries, left]``.
        """

    def fits(self, x: paddle.Tensor) -> bool:
        """True when ``x`` is ``[batch, tokens, channels]`` with these numbers of both."""
        return x.ndim == 3 and sizes_match(x.shape[0], self.batch) and x.shape[1] == self.num_tokens
