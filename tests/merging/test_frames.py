"""Tokens of videos: each frame by itself, or cells over several frames."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome.merging.chosen_keys import ChosenKeys, select_key_tokens
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matchers import match_tokens
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import random_partition, regular_partition
from ppdiffusers_tome.merging.tiles import split_by_tile

FRAME = Grid(4, 6)


def match_each_frame(x: paddle.Tensor, frames: int, num_merged: int) -> tuple[Matching, Matching]:
    """A matching of each frame as a part of its video, and as an image."""
    partition = random_partition(FRAME, 2, 2, seed=0, timestep=None)
    together = match_tokens(x, partition, num_merged, frames=frames)
    apart = match_tokens(x.reshape([-1, FRAME.num_tokens, x.shape[2]]), partition, num_merged)
    return together, apart


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_frames_merge_as_if_each_were_an_image(batch: int, frames: int) -> None:
    x = tiny.array((batch, frames * FRAME.num_tokens, 8))
    together, apart = match_each_frame(x, frames, num_merged=11)
    assert together.num_left == frames * apart.num_left
    merged = together.reduce(x)
    of_images = apart.reduce(x.reshape([-1, FRAME.num_tokens, 8]))
    assert np.array_equal(merged.numpy(), of_images.reshape([batch, -1, 8]).numpy())
    back = apart.restore(of_images).reshape(x.shape)
    assert np.array_equal(together.restore(merged).numpy(), back.numpy())
    assert (together.batch, together.num_tokens) == tuple(x.shape[:2])


@pytest.mark.parametrize("grid", [Grid(4, 6, 4), Grid(5, 7, 3), Grid(2, 2, 2), Grid(3, 5, 7)])
def test_cells_over_frames_hold_every_token_once(grid: Grid) -> None:
    cells, rest = grid.cells(2, 2, 2)
    assert len(cells) == grid.num_cells(2, 2, 2)
    assert sorted([*cells.ravel(), *rest]) == list(range(grid.num_tokens))
    frame, row, column = np.unravel_index(cells, (grid.frames, grid.height, grid.width))
    for place in (frame, row, column):
        assert np.array_equal(place.max(axis=1) - place.min(axis=1), np.ones(len(cells)))
        assert (place.min(axis=1) % 2 == 0).all()


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
    downsampling = ChosenKeys(kept, batch=2, num_tokens=29, prefix=5)
    assert downsampling.positions.tolist() == [[5, 7, 9, 17, 19, 21, 0, 1, 2, 3, 4]]
