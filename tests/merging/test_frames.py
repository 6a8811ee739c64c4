"""Tokens of videos: each frame by itself, or cells over several frames."""

import numpy as np
import pytest

import tiny
from ppdiffusers_tome.merging.chosen_keys import ChosenKeys, select_key_tokens
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.partition import random_partition, regular_partition
from ppdiffusers_tome.merging.tiles import split_by_tile

FRAME = Grid(4, 6)


@pytest.mark.parametrize("tile", [None, 2, 4])
@pytest.mark.parametrize("frames", [2, 3, 6])
def test_a_stride_over_frames_merges_within_its_frames(tile: int | None, frames: int) -> None:
    grid = Grid(4, 6, frames)
    x = tiny.array((2, grid.num_tokens, 8))
    partition = random_partition(grid, 2, 2, seed=0, timestep=None, st=2)
    assert len(partition.destinations) == frames // 2 * 6
    tiles = split_by_tile(partition, grid, tile, (2, 2, 2))
    matching = match_tokens(x, partition, grid.num_merged(0.6), tiles=tiles)
    frame = np.arange(grid.num_tokens) // FRAME.num_tokens
    window = np.minimum(frame // 2, frames // 2 - 1)
    for owner in matching.owner.numpy().reshape(2, -1):
        for row in set(owner):
            assert len(set(window[owner == row])) == 1
        assert any(len(set(frame[owner == row])) > 1 for row in set(owner))


def test_the_same_tokens_of_every_frame_give_keys() -> None:
    kept = select_key_tokens(regular_partition(FRAME, 2, 2), 18, frames=3)
    first = kept[:6].numpy()
    assert first.tolist() == [0, 2, 4, 12, 14, 16]
    assert kept.tolist() == [*first, *(first + 24), *(first + 48)]


def test_the_positions_of_keys_are_those_of_their_tokens() -> None:
    kept = select_key_tokens(regular_partition(FRAME, 2, 2).shift(5), 18)
    downsampling = ChosenKeys(kept, batch=2, num_tokens=29)
    assert downsampling.positions.tolist() == [[5, 7, 9, 17, 19, 21, 0, 1, 2, 3, 4]]
