"""From settings to what merges on a grid: tokens, or keys and values alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.gradients import disable_gradients
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.kv_reduction.base import FewerKeys
from ppdiffusers_tome.merging.kv_reduction.merged_keys import MergedKeys
from ppdiffusers_tome.merging.kv_reduction.pooling import plan_pooling
from ppdiffusers_tome.merging.kv_reduction.selection import ChosenKeys, select_key_tokens
from ppdiffusers_tome.merging.matchers import matcher
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.methods import CHOSEN, MERGED, METHODS, POOLED
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.settings.config import ToMeConfig

# What merges in a block: its tokens, or its keys and values alone.
MatchingOrKeys = Matching | FewerKeys
# From the tokens of a block, ``[batch, tokens, channels]``; None where none merge.
Matcher = Callable[[paddle.Tensor], MatchingOrKeys | None]


def merge_grid(config: ToMeConfig, grid: Grid) -> Grid:
    """The grid whose tokens merge among themselves: one frame's, unless there is a stride over frames."""
    return grid if config.st > 1 else grid.single_frame


def matcher_for(
    config: ToMeConfig, layout: Layout, num_merged: int, *,
    timestep: paddle.Tensor | None = None, constants: Constants | None = None,
) -> Matcher:  # fmt: skip
    """What all blocks on a grid merge by, in one call of a denoiser.

    Args:
        config: the settings.
        layout: of the tokens.
        num_merged: how many of a frame, or of all frames with a stride over them.
        timestep: scalar or ``[batch]``, on which the random choice depends; None where there is none.
        constants: as in ``partition.random_partition``.
    """
    constants = constants or Constants()
    grid, keys = merge_grid(config, layout.grid), METHODS[config.method].keys
    frames, stride = layout.grid.frames // grid.frames, (config.sx, config.sy, config.st)
    # A ramp has other numbers in every step.
    kept_for_later = Constants() if config.is_ramp(layout.level) else constants
    if keys == POOLED:
        return _OnceABatch(partial(plan_pooling(layout, grid, num_merged, stride), constants=kept_for_later))
    partition = _partition(config, grid, timestep, constants).after(layout.prefix)
    if keys == CHOSEN:
        chosen = select_key_tokens(partition, num_merged, kept_for_later, frames=frames)
        return lambda tokens: ChosenKeys(chosen, tokens.shape[0], tokens.shape[1], layout.prefix)
    match = matcher(
        partition, grid, num_merged, tile=config.tile, stride=stride, min_similarity=config.min_similarity,
        constants=constants, frames=frames,
    )  # fmt: skip
    return partial(_merged, match) if keys == MERGED else match


class _OnceABatch:
    """What does not depend on tokens but on how many images there are, made for the first block of a call.

    A class, as Paddle 2.6 loses what a function holds of the one around it while it records a program.
    """

    def __init__(self, pool: Matcher) -> None:
        self._pool, self._made = pool, dict[int, MatchingOrKeys | None]()

    def __call__(self, tokens: paddle.Tensor) -> MatchingOrKeys | None:
        batch = tokens.shape[0]
        if batch not in self._made:
            self._made[batch] = self._pool(tokens)
        return self._made[batch]


def _merged(match: Callable[[paddle.Tensor], Matching | None], tokens: paddle.Tensor) -> MergedKeys | None:
    matching = match(tokens)
    return None if matching is None else MergedKeys.of(matching)


@disable_gradients
def _partition(config: ToMeConfig, grid: Grid, timestep: paddle.Tensor | None, constants: Constants) -> Partition:
    if not config.use_rand:
        return regular_partition(grid, config.sx, config.sy, constants, st=config.st)
    return random_partition(
        grid, config.sx, config.sy, seed=config.seed, timestep=timestep, constants=constants, st=config.st
    )
