"""Merging methods: the contract, and what each says of itself."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import tiny
from attaching.contract import MethodContract
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matchers import exact, tiled
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition

TILE = 4
GRIDS = [Grid(4, 4), Grid(64, 64), Grid(5, 7), Grid(2, 17), Grid(13, 14), Grid(33, 36), Grid(96, 64)]


def match_in_tiles(x: paddle.Tensor, partition: Partition, grid: Grid, num_merged: int) -> Matching:
    return tiled.match(x, tiled.by_tiles(partition, tiled.tiles_of(grid, 2, 2, TILE)), num_merged)


class TestToMe(MethodContract):
    match = staticmethod(lambda x, partition, grid, num_merged: exact.match(x, partition, num_merged))

    def may_merge(self, grid: Grid, source: int, destinations: np.ndarray) -> np.ndarray:
        return np.ones(len(destinations), bool)


class TestTiled(MethodContract):
    match = staticmethod(match_in_tiles)

    def may_merge(self, grid: Grid, source: int, destinations: np.ndarray) -> np.ndarray:
        return tile_numbers(grid, destinations) == tile_numbers(grid, np.array([source]))

    @pytest.mark.parametrize("grid", GRIDS)
    def test_tiles_are_small_and_alike_and_hold_every_number_once(self, grid: Grid) -> None:
        tiles = tiled.tiles_of(grid, 2, 2, TILE)
        num_destinations = grid.num_cells(2, 2)
        num_sources = grid.num_tokens - num_destinations
        assert sorted(set(tiles.destinations.ravel())) == list(range(num_destinations))
        assert np.array_equal(np.sort(tiles.sources[~tiles.repeated]), np.arange(num_sources))
        assert tiles.destinations.shape[1] <= (TILE // 2) ** 2
        fewest = min(len(set(row)) for row in tiles.destinations)
        assert fewest >= tiles.destinations.shape[1] // 4

    def test_a_tile_as_large_as_the_grid_is_no_tile(self) -> None:
        assert tiled.tiles_of(Grid(16, 16), 2, 2, 16).number == 1
        whole = tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2))
        assert np.array_equal(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=16)), whole)
        assert np.abs(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=8)) - whole).max() > 1e-3

    @pytest.mark.parametrize(("height", "width"), [(16, 16), (18, 22), (15, 9), (64, 8)])
    def test_unet_runs_at_any_size(self, height: int, width: int) -> None:
        unet = apply_tome(tiny.unet(), 0.5, tile=4, merge_crossattn=True, merge_mlp=True)
        assert np.isfinite(tiny.run_unet(unet, 2, height, width)).all()


def tile_numbers(grid: Grid, tokens: np.ndarray) -> np.ndarray:
    """The tile of each token, worked out on its own: whole cells of 2x2, parts as even as can be, the rest beside."""

    def part(of: np.ndarray, cells: int) -> np.ndarray:
        number = -(-cells // (TILE // 2))
        larger, size = cells % number, cells // number
        ends = np.cumsum([size + (index < larger) for index in range(number)])
        return np.searchsorted(ends, np.minimum(of // 2, cells - 1), side="right")

    rows, columns = part(tokens // grid.width, grid.height // 2), part(tokens % grid.width, grid.width // 2)
    return rows * 1000 + columns
