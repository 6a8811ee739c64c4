"""Matching: by similarity, anywhere or within tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matchers import match_tokens
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition, regular_partition
from ppdiffusers_tome.merging.tiles import cut_into_tiles, split_by_tile

TILE = 4
GRIDS = [Grid(4, 4), Grid(64, 64), Grid(5, 7), Grid(2, 17), Grid(13, 14), Grid(33, 36), Grid(96, 64)]


def match_in_tiles(x: paddle.Tensor, partition: Partition, grid: Grid, num_merged: int) -> Matching:
    tiles = split_by_tile(partition, grid, TILE, (2, 2, 1))
    return match_tokens(x, partition, num_merged, tiles=tiles)


def match_anywhere(x: paddle.Tensor, partition: Partition, grid: Grid, num_merged: int) -> Matching:
    return match_tokens(x, partition, num_merged)


# Grid, batch, how many tokens merge, and by what these are multiplied.
MATCHED = [
    (Grid(4, 4), 1, 1, 1), (Grid(4, 4), 2, 8, 1), (Grid(4, 4), 3, 12, 1), (Grid(5, 7), 2, 17, 1),
    (Grid(5, 7), 1, 29, 1), (Grid(8, 8), 2, 33, 1), (Grid(8, 8), 2, 48, 1), (Grid(11, 6), 2, 40, 1),
    (Grid(2, 17), 2, 11, 1), (Grid(13, 14), 2, 90, 1), (Grid(4, 4), 1, 7, 1e-3), (Grid(4, 4), 1, 7, 1e15),
]  # fmt: skip


@pytest.mark.parametrize("match", [match_anywhere, match_in_tiles])
@pytest.mark.parametrize(("grid", "batch", "num_merged", "scale"), MATCHED)
def test_the_most_similar_merge(match: Any, grid: Grid, batch: int, num_merged: int, scale: float) -> None:
    """By cosines in float64: another library, machine or scale may settle near ties another way."""
    x, partition = tiny.array((batch, grid.num_tokens, 6), seed=3) * scale, regular_partition(grid, 2, 2)
    matching = match(x, partition, grid, num_merged)
    sources, destinations = partition.sources.numpy(), partition.destinations.numpy()
    allowed = np.ones((len(sources), len(destinations)), bool)
    if match is match_in_tiles:
        allowed = np.stack([list_visible(grid, source, destinations) for source in sources])
    for tokens, owner in zip(x.numpy().astype("float64"), matching.owner.numpy().reshape(len(x), -1), strict=True):
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        cosine = np.where(allowed, unit[sources] @ unit[destinations].T, -2)
        highest, into = cosine.max(axis=1), owner[sources][:, None] == owner[destinations]
        merged = into.any(axis=1)
        assert len(set(owner[destinations])) == len(destinations)
        assert (merged.sum(), into.sum()) == (num_merged, num_merged)
        assert len(set(owner[sources][~merged])) == len(sources) - num_merged
        assert np.abs(cosine[merged][into[merged]] - highest[merged]).max() <= 1e-6
        assert highest[merged].min() >= highest[~merged].max(initial=-2) - 1e-6


class TestTiles:
    @pytest.mark.parametrize("sides", [(2, 2), (3, 1), (4, 2)])
    @pytest.mark.parametrize("grid", GRIDS)
    def test_tiles_hold_every_source_and_what_it_sees(self, grid: Grid, sides: tuple[int, int]) -> None:
        sx, sy = sides
        if not grid.num_cells(sx, sy):
            pytest.skip("no cell fits")
        tiles, (cells, rest) = cut_into_tiles(grid, sx, sy, TILE), grid.cells(sx, sy)
        tokens_of = np.concatenate([cells[:, 1:].ravel(), rest])
        once = np.sort(tiles.sources) if tiles.columns is None else tiles.sources[tiles.columns]
        assert np.array_equal(once, np.arange(len(tokens_of)))
        by_tile = (each.reshape(tiles.num_tiles, -1) for each in (tiles.sources, tiles.destinations))
        for sources, destinations in zip(*by_tile, strict=True):
            for source in sources:
                seen = np.flatnonzero(list_visible(grid, tokens_of[source], cells[:, 0], sx, sy))
                assert set(destinations) == set(seen)
                assert len(seen) <= (TILE // sx + 2) * (TILE // sy + 2)

    def test_a_tile_as_large_as_the_grid_is_no_tile(self) -> None:
        assert cut_into_tiles(Grid(16, 16), 2, 2, 16).num_tiles == 1
        whole = tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2))
        assert np.array_equal(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=16)), whole)
        assert np.abs(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=8)) - whole).max() > 1e-3


def list_visible(grid: Grid, source: int, destinations: np.ndarray, sx: int = 2, sy: int = 2) -> np.ndarray:
    """Which destinations a source is compared with, worked out on its own: of its tile and one cell around it.

    Tiles are whole cells, as even as can be, the rest beside them.
    """

    def find_seen(of: int, places: np.ndarray, cells: int, cell: int) -> np.ndarray:
        number = -(-cells // (TILE // cell))
        larger, size = cells % number, cells // number
        ends = np.cumsum([size + (index < larger) for index in range(number)])
        tile = np.searchsorted(ends, min(of // cell, cells - 1), side="right")
        begin = ends[tile] - size - (tile < larger)
        return (begin - 1 <= places // cell) & (places // cell <= ends[tile])

    row, column = divmod(source, grid.width)
    return find_seen(row, destinations // grid.width, grid.height // sy, sy) & find_seen(
        column, destinations % grid.width, grid.width // sx, sx
    )
