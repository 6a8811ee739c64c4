"""The plan of a call for the tokens of one layout."""

from dataclasses import dataclass
from functools import cached_property

import paddle

from ppdiffusers_tome.merging.chosen_keys import ChosenKeys, select_key_tokens
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.tiles import Tiles, split_by_tile
from ppdiffusers_tome.settings.config import ToMeConfig


@dataclass(eq=False)
class Plan:
    """The way tokens of a layout merge in a call's blocks.

    Random destinations are drawn once for all blocks, and only if one of them makes a reduction, not if all reuse one.
    """

    config: ToMeConfig
    layout: Layout
    num_merged: int  # of all frames with a stride over frames, else of one; 0 where the blocks run unmerged
    timestep: paddle.Tensor | None = None  # as of ``random_partition``

    def __post_init__(self) -> None:
        grid = self.layout.grid
        self._grid = grid if self.config.st > 1 else grid.frame  # whose tokens merge among themselves
        self._num_grids = grid.frames // self._grid.frames

    def make_reduction(self, tokens: paddle.Tensor) -> TokenReduction:
        """Make the reduction of a block's tokens, ``[batch, tokens, channels]``."""
        method = METHODS[self.config.method]
        if not method.compares:
            return ChosenKeys(self.kept, tokens.shape[0], tokens.shape[1])
        return match_tokens(tokens, self.partition, self.num_merged, self.tiles, self._num_grids, method.keeps_queries)

    @cached_property
    def partition(self) -> Partition:
        """The sources and destinations."""
        config, grid, stride = self.config, self._grid, (self.config.sx, self.config.sy)
        with paddle.no_grad():
            if config.use_rand:
                partition = random_partition(grid, *stride, seed=config.seed, timestep=self.timestep, st=config.st)
            else:
                partition = regular_partition(grid, *stride, st=config.st)
            return partition.shift(self.layout.prefix) if self.layout.prefix else partition

    @cached_property
    def tiles(self) -> Tiles | None:
        """The tiles in which tokens are compared, of a method that compares."""
        config = self.config
        return split_by_tile(self.partition, self._grid, config.tile, (config.sx, config.sy, config.st))

    @cached_property
    def kept(self) -> paddle.Tensor:
        """The tokens that give keys, of a method that compares none."""
        return select_key_tokens(self.partition, self.num_merged, frames=self._num_grids)
