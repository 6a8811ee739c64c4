"""Merging in one block, stage by stage, by variant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.grid import Grid

if TYPE_CHECKING:
    import paddle

PARTITION, MATCH, MERGE, UNMERGE = "partition", "match", "merge", "unmerge"
STAGES = (MATCH, MERGE, UNMERGE)  # the timed ones; a partition, where it is a stage of its own, counts as matching
NAMES = OURS, FAST, PORT = "ours", "ours, tile and reuse", "port"


@dataclass(frozen=True)
class BlockCase:
    """One block's tokens, ``[batch, height * width, channels]``, and how many merge (2x2 stride).

    Attributes:
        batch, height, width, channels, ratio: of the tokens.
        blocks: how many blocks a denoising step has on this grid; 5 in Stable Diffusion 1.5's finest level.
        tile, reuse_steps: of the variant ``FAST``, whose blocks share their matching.
    """

    batch: int = 2
    height: int = 64
    width: int = 64
    channels: int = 320
    ratio: float = 0.5
    blocks: int = 5
    tile: int = 16
    reuse_steps: int = 4

    @property
    def grid(self) -> Grid:
        return Grid(self.height, self.width)

    @property
    def num_merged(self) -> int:
        """Number of tokens of an image that merge."""
        return self.grid.num_merged(self.ratio)

    def tokens(self) -> paddle.Tensor:
        """Return random tokens in float32, the same every time."""
        import numpy as np
        import paddle

        shape = (self.batch, self.grid.num_tokens, self.channels)
        return paddle.to_tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


# It merges the tokens at a timestep, and yields the name of every stage as soon as the stage has ended.
Stages = Callable[[BlockCase, "paddle.Tensor", "paddle.Tensor"], Iterator[str]]


def stages_of(name: str, case: BlockCase) -> Stages:
    """Return the stages of a variant of ``NAMES``."""
    return run_port if name == PORT else partial(run_ours, tile=case.tile if name == FAST else None)


def run_ours(case: BlockCase, x: paddle.Tensor, timestep: paddle.Tensor, *, tile: int | None = None) -> Iterator[str]:
    """Merge with this package, comparing all with all or within tiles."""
    from ppdiffusers_tome.merging.matching import match_tokens
    from ppdiffusers_tome.merging.partition import random_partition
    from ppdiffusers_tome.merging.tiles import split_by_tile

    partition = random_partition(case.grid, 2, 2, seed=0, timestep=timestep)
    tiles = split_by_tile(partition, case.grid, tile, (2, 2, 1))
    yield PARTITION
    matching: Any = match_tokens(x, partition, case.num_merged, tiles=tiles)
    yield MATCH
    yield from _merge_and_unmerge(matching.reduce, matching.restore, x)


def run_todo(
    case: BlockCase, x: paddle.Tensor, timestep: paddle.Tensor, *, stride: tuple[int, int] = (2, 2)
) -> Iterator[str]:
    """Choose the tokens of keys and values; nothing is restored."""
    from ppdiffusers_tome.merging.chosen_keys import ChosenKeys, select_key_tokens
    from ppdiffusers_tome.merging.partition import random_partition

    chosen = select_key_tokens(random_partition(case.grid, *stride, seed=0, timestep=timestep), case.num_merged)
    yield PARTITION
    keys = ChosenKeys(chosen, x.shape[0], x.shape[1])
    yield MATCH
    keys.reduce(x)  # once for keys and values, which are made of the same tokens
    yield MERGE


def run_port(case: BlockCase, x: paddle.Tensor, timestep: paddle.Tensor) -> Iterator[str]:
    """Merge with ppdiffusers' port, whose partition belongs to its matching, again in every block."""
    from ppdiffusers.patches.tomesd_patch_utils import bipartite_soft_matching_random2d

    merge, unmerge = bipartite_soft_matching_random2d(x, case.width, case.height, 2, 2, case.num_merged)
    yield MATCH
    yield from _merge_and_unmerge(merge, unmerge, x)


def run_free(case: BlockCase, x: paddle.Tensor, timestep: paddle.Tensor) -> Iterator[str]:
    """Cut the last tokens off and put them back, without merging."""
    import paddle

    num_left = case.grid.num_tokens - case.num_merged
    left = x[:, :num_left]
    yield MERGE
    paddle.concat([left, x[:, num_left:]], axis=1)
    yield UNMERGE


def _merge_and_unmerge(merge: Callable[[Any], Any], unmerge: Callable[[Any], Any], x: paddle.Tensor) -> Iterator[str]:
    merged = merge(x)
    yield MERGE
    unmerged = unmerge(merged)  # kept until the stage has ended, as memory is read then
    yield UNMERGE
    del unmerged
