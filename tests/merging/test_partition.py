"""Destinations: one a cell, chosen evenly from the seed, the timestep and the grid alone, the same for every image."""

import numpy as np
import paddle
import pytest

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.partition import random_partition


def find_places(grid: Grid, sx: int, sy: int, *, seed: int = 0, timestep: float = 1.0) -> np.ndarray:
    """The place inside its cell, 0 to sx * sy - 1, of every cell's destination."""
    step = paddle.to_tensor(timestep, dtype="float32")
    destinations = random_partition(grid, sx, sy, seed=seed, timestep=step).destinations.numpy()
    return (destinations // grid.width % sy) * sx + destinations % grid.width % sx


@pytest.mark.parametrize(("sx", "sy"), [(2, 2), (3, 2), (4, 4)])
def test_random_destinations_are_even_over_a_cell(sx: int, sy: int) -> None:
    grid, places = Grid(12, 12), sx * sy
    by_timestep = np.stack([find_places(grid, sx, sy, timestep=step) for step in range(400)])
    by_seed = np.stack([find_places(grid, sx, sy, seed=seed) for seed in range(400)])
    for draws in (by_timestep, by_seed):
        share = np.bincount(draws.ravel(), minlength=places) / draws.size
        assert np.abs(share - 1 / places).max() < 0.15 / places
        for cell in draws.T:
            share = np.bincount(cell, minlength=places) / len(cell)
            # Five standard deviations of a fair draw.
            assert np.abs(share - 1 / places).max() < 5 * np.sqrt(1 / places / len(cell))


def test_random_destinations_of_neighbours_steps_and_grids_are_independent() -> None:
    grids = (Grid(16, 16), Grid(8, 32))
    draws, other = (np.stack([find_places(grid, 2, 2, timestep=step) for step in range(300)]) for grid in grids)
    agree = {
        "cells": (draws[:, 1:] == draws[:, :-1]).mean(),
        "steps": (draws[1:] == draws[:-1]).mean(),
        "steps of 20": (draws[20:] == draws[:-20]).mean(),
        "grids": (draws == other).mean(),
    }
    assert all(abs(share - 0.25) < 0.02 for share in agree.values()), agree


@pytest.mark.parametrize(
    "timestep",
    [
        paddle.to_tensor(501, dtype="int64"), paddle.to_tensor(501, dtype="int32"), paddle.to_tensor([501]),
        paddle.to_tensor([501.0]), paddle.to_tensor(501.0, dtype="float64"), paddle.to_tensor([501, 501, 501]),
        paddle.to_tensor([501.0, 3.0]),
    ],
)  # fmt: skip
def test_random_destinations_are_the_same_for_every_form_of_a_timestep(timestep: paddle.Tensor) -> None:
    expected = random_partition(Grid(8, 8), 2, 2, seed=1, timestep=paddle.to_tensor(501.0))
    found = random_partition(Grid(8, 8), 2, 2, seed=1, timestep=timestep)
    assert np.array_equal(found.destinations.numpy(), expected.destinations.numpy())


def test_random_destinations_are_these_on_every_paddle() -> None:
    """Pinned: Paddle 2.6 rounds large Python numbers to float32, which once gave it other ones."""
    found = random_partition(Grid(4, 8), 2, 2, seed=7, timestep=paddle.to_tensor(981))
    assert found.destinations.tolist() == [8, 10, 5, 6, 25, 27, 29, 22]
