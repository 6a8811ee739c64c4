"""The plan of a call for the tokens of one layout."""

import paddle

from ppdiffusers_tome.merging.chosen_keys import ChosenKeys, TokenReduction, select_key_tokens
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.merging.tiles import Tiles, split_by_tile
from ppdiffusers_tome.settings.config import ToMeConfig


class Plan:
    """The way tokens of a layout merge in a call's blocks.

    Args:
        num_merged: of all frames with a stride over frames, else of one; 0 where the blocks run unmerged.
        timestep: as of ``random_partition``.
    """

    def __init__(
        self, config: ToMeConfig, layout: Layout, num_merged: int, *, timestep: paddle.Tensor | None = None
    ) -> None:
        self.num_merged, self.timestep = num_merged, timestep
        self._config, self._layout = config, layout
        self._frames = 1 if config.st > 1 else layout.grid.frames  # that merge by themselves
        self._partition: Partition | None = None
        self._tiles: Tiles | None = None
        self._kept: paddle.Tensor | None = None  # of a method that compares no tokens

    def reduce(self, tokens: paddle.Tensor) -> TokenReduction:
        """Make the reduction of a block's tokens, ``[batch, tokens, channels]``."""
        partition = self._partition or self.draw()
        if self._kept is not None:
            return ChosenKeys(self._kept, tokens.shape[0], tokens.shape[1])
        keeps_queries = METHODS[self._config.method].keeps_queries
        return match_tokens(tokens, partition, self.num_merged, self._tiles, self._frames, keeps_queries)

    def draw(self) -> Partition:
        """Draw the sources and destinations, which steps that share matchings need not."""
        config, grid = self._config, self._layout.grid
        grid = grid if self._frames == 1 else grid.frame
        with paddle.no_grad():
            if config.use_rand:
                partition = random_partition(
                    grid, config.sx, config.sy, seed=config.seed, timestep=self.timestep, st=config.st
                )
            else:
                partition = regular_partition(grid, config.sx, config.sy, st=config.st)
        if self._layout.prefix:
            partition = partition.shift(self._layout.prefix)
        if METHODS[config.method].compares:
            self._tiles = split_by_tile(partition, grid, config.tile, (config.sx, config.sy, config.st))
        else:
            self._kept = select_key_tokens(partition, self.num_merged, frames=self._frames)
        self._partition = partition
        return partition
