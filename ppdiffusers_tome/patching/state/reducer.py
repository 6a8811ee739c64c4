"""The construction of reducers from settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.kv_reduction import ChosenKeys, plan_pooling, select_key_tokens
from ppdiffusers_tome.merging.matchers import Matcher, build_matcher
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.methods import CHOSEN, MERGED, METHODS, POOLED
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.settings.config import ToMeConfig

# Reduces the tokens of a block, ``[batch, tokens, channels]``; None where none merge.
Reducer = Callable[[paddle.Tensor], TokenReduction | None]


def merge_grid(config: ToMeConfig, grid: Grid) -> Grid:
    """Return the grid within which tokens merge: one frame or all."""
    return grid if config.st > 1 else grid.single_frame


def build_reducer(
    config: ToMeConfig, layout: Layout, num_merged: int, *,
    timestep: paddle.Tensor | None = None, constants: Constants | None = None,
) -> Reducer:  # fmt: skip
    """Build the reducer that blocks on a grid share in a call.

    Args:
        config: the settings.
        layout: of the tokens.
        num_merged: the number of merged tokens in ``merge_grid``.
        timestep: scalar or ``[batch]``, on which the random choice depends, or None.
        constants: as in ``partition.random_partition``.
    """
    constants = constants or Constants()
    grid, keys = merge_grid(config, layout.grid), METHODS[config.method].keys
    frames, stride = layout.grid.frames // grid.frames, (config.sx, config.sy, config.st)
    # A ramp has another number in every step.
    step_constants = Constants() if config.is_ramp(layout.level) else constants
    if keys == POOLED:
        return _OnceABatch(partial(plan_pooling(layout, grid, num_merged, stride).match, constants=step_constants))
    partition = _choose_partition(config, grid, timestep, constants).shift(layout.prefix)
    if keys == CHOSEN:
        kept = select_key_tokens(partition, num_merged, step_constants, frames=frames)
        return partial(_choose_keys, kept, layout.prefix)
    match = build_matcher(
        partition, grid, num_merged, tile=config.tile, stride=stride, min_similarity=config.min_similarity,
        constants=constants, frames=frames,
    )  # fmt: skip
    return partial(_match_keys, match) if keys == MERGED else match


# Functions of this module with ``partial``, and a class, not nested functions: Paddle 2.6 loses the variables of a
# closure while it traces a program.


class _OnceABatch:
    """A reducer whose matching depends only on the batch size."""

    def __init__(self, match: Callable[[paddle.Tensor], Matching]) -> None:
        self._match, self._made = match, dict[int, Matching]()

    def __call__(self, tokens: paddle.Tensor) -> Matching:
        batch = tokens.shape[0]
        if batch not in self._made:
            self._made[batch] = self._match(tokens)
        return self._made[batch]


def _choose_keys(kept: paddle.Tensor, prefix: int, tokens: paddle.Tensor) -> ChosenKeys:
    return ChosenKeys(kept, tokens.shape[0], tokens.shape[1], prefix)


def _match_keys(match: Matcher, tokens: paddle.Tensor) -> Matching | None:
    matching = match(tokens)
    return None if matching is None else matching.keep_queries()


def _choose_partition(
    config: ToMeConfig, grid: Grid, timestep: paddle.Tensor | None, constants: Constants
) -> Partition:
    if not config.use_rand:
        return regular_partition(grid, config.sx, config.sy, constants, st=config.st)
    with paddle.no_grad():
        return random_partition(
            grid, config.sx, config.sy, seed=config.seed, timestep=timestep, constants=constants, st=config.st
        )
