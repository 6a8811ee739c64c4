"""Matching: by similarity, anywhere or within tiles."""

import numpy as np
import pytest

import tiny
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.partition import regular_partition
from ppdiffusers_tome.merging.tiles import cut_into_tiles, split_by_tile

TILE = 4


# Grid, stride, batch, how many tokens merge, and by what these are multiplied.
MATCHED = [
    (Grid(4, 4), (2, 2), 1, 1, 1), (Grid(4, 4), (2, 2), 2, 8, 1), (Grid(4, 4), (2, 2), 3, 12, 1),
    (Grid(5, 7), (2, 2), 2, 17, 1), (Grid(5, 7), (2, 2), 1, 29, 1), (Grid(8, 8), (2, 2), 2, 33, 1),
    (Grid(8, 8), (2, 2), 2, 48, 1), (Grid(11, 6), (2, 2), 2, 40, 1), (Grid(2, 17), (2, 2), 2, 11, 1),
    (Grid(13, 14), (2, 2), 2, 90, 1), (Grid(4, 4), (2, 2), 1, 7, 1e-3), (Grid(4, 4), (2, 2), 1, 7, 1e15),
    (Grid(13, 14), (3, 1), 2, 90, 1), (Grid(33, 36), (4, 2), 1, 900, 1), (Grid(5, 7), (3, 1), 1, 20, 1),
]  # fmt: skip


@pytest.mark.parametrize("tile", [None, TILE])
@pytest.mark.parametrize(("grid", "stride", "batch", "num_merged", "scale"), MATCHED)
def test_the_most_similar_merge(
    tile: int | None, grid: Grid, stride: tuple[int, int], batch: int, num_merged: int, scale: float
) -> None:
    """By cosines in float64: another library, machine or scale may settle near ties another way."""
    x, partition = tiny.array((batch, grid.num_tokens, 6), seed=3) * scale, regular_partition(grid, *stride)
    tiles = split_by_tile(partition, grid, tile, (*stride, 1))
    matching = match_tokens(x, partition, num_merged, tiles=tiles)
    sources, destinations = partition.sources.numpy(), partition.destinations.numpy()
    allowed = np.ones((len(sources), len(destinations)), bool)
    if tile is not None:
        allowed = np.stack([list_visible(grid, source, destinations, *stride) for source in sources])
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


def test_a_tile_as_large_as_the_grid_is_no_tile() -> None:
    assert cut_into_tiles(Grid(16, 16), 2, 2, 16).num_tiles == 1
    whole = tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2))
    assert np.array_equal(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=16)), whole)
    assert np.abs(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=8)) - whole).max() > 1e-3


def list_visible(grid: Grid, source: int, destinations: np.ndarray, sx: int, sy: int) -> np.ndarray:
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
