"""Keys and values of groups of similar tokens (``methods/keys.py``): a matching that leaves queries as they are."""

from __future__ import annotations

from dataclasses import dataclass

import paddle

from ppdiffusers_tome.merging.keys.fewer import FewerKeys
from ppdiffusers_tome.merging.matching import Matching


@dataclass(frozen=True)
class MergedKeys(FewerKeys):
    """The mean of each group gives one key and one value.

    Attributes:
        matching: the groups.
        batch: as in ``FewerKeys``.
        num_tokens: as in ``FewerKeys``.
    """

    matching: Matching
    batch: int
    num_tokens: int

    @classmethod
    def of(cls, matching: Matching | None) -> MergedKeys | None:
        """The keys of a matching; None where nothing matches."""
        return None if matching is None else cls(matching, matching.batch, matching.num_tokens)

    @property
    def num_left(self) -> int:
        return self.matching.num_left

    @property
    def is_even(self) -> bool:
        return False

    @property
    def positions(self) -> paddle.Tensor:
        return self.matching.positions

    @property
    def log_sizes(self) -> paddle.Tensor:
        return self.matching.log_sizes

    def keys_of(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.matching.merge(x)

    def merge_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        return self.matching.merge_mask(mask, keys_only=True)
