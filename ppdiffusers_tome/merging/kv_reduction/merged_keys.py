"""Keys and values of groups of tokens (``methods/keys.py``, ``methods/pool.py``): a matching; queries stay whole."""

from __future__ import annotations

from dataclasses import dataclass

import paddle

from ppdiffusers_tome.merging.kv_reduction.base import FewerKeys
from ppdiffusers_tome.merging.matching import Matching


@dataclass(frozen=True)
class MergedKeys(FewerKeys):
    """The mean of each group gives one key and one value.

    Attributes:
        matching: the groups.
        batch: as in ``FewerKeys``.
        num_tokens: as in ``FewerKeys``.
        in_cells: whether the groups are all cells of a grid, and so of equal sizes.
    """

    matching: Matching
    batch: int
    num_tokens: int
    in_cells: bool

    @classmethod
    def of(cls, matching: Matching, *, in_cells: bool = False) -> MergedKeys:
        """The keys of a matching."""
        return cls(matching, matching.batch, matching.num_tokens, in_cells)

    @property
    def uniform_groups(self) -> bool:
        return self.in_cells

    @property
    def num_left(self) -> int:
        return self.matching.num_left

    @property
    def positions(self) -> paddle.Tensor:
        return self.matching.positions

    @property
    def log_group_sizes(self) -> paddle.Tensor:
        return self.matching.log_group_sizes

    def keys_of(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.matching.merge(x)

    def merge_mask(self, mask: paddle.Tensor) -> paddle.Tensor:
        return self.matching.merge_mask(mask, keeps_queries=True)
