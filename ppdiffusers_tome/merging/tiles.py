"""Tiles of a grid, for a matching of linear cost.

What a token resembles most is nearly always near it, so little is lost when it is compared with its own tile alone
(locality: ToMA, Lu et al., ICML 2025). The sources of a tile also see the cells one beyond it, so that a token's
neighbours are never out of reach, as in comparing each token with its neighbours (CoReDiT, arXiv 2605.14191). Which
sources merge is still decided over the whole image.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constant, load_constants
from ppdiffusers_tome.merging.grid import Grid, divide_evenly
from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.similarity import find_nearest


@dataclass(frozen=True, eq=False)
class TileIndices:
    """The S sources and D destinations of a grid's tiles, int64.

    They are indices into a partition's. A tile with fewer sources than the largest repeats its last one.
    """

    num_tiles: int
    sources: Constant  # [num_tiles * S], each in one tile
    destinations: Constant  # [num_tiles * D], those in the tile and in the cells around it, of the same frames
    tile_offset: Constant  # [1, num_tiles * S], where in destinations the tile of each source begins
    place_of_source: Constant  # of each source of the partition the place in sources; None where none is repeated


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tokens of a partition's tiles, int64, and their indices in it."""

    sources: paddle.Tensor  # [num_tiles * S]
    destinations: paddle.Tensor  # [num_tiles * D]
    indices: TileIndices


@lru_cache(maxsize=32)
def cut_into_tiles(grid: Grid, sx: int, sy: int, tile: int, st: int = 1) -> TileIndices:
    """Cut a grid into tiles of whole cells.

    They have at most ``tile`` by ``tile`` tokens, are one cell deep and of nearly the same size. Tokens past the last
    whole cell belong to the tile beside them.

    Example, with the destinations 0, 2, 8 and 10 (index 0 to 3) of the 4x4 grid below and tiles of one cell:

        0  1 |  2  3        The source 1 is in the first tile, which also sees the cells around it, here all four:
        4  5 |  6  7        it is compared with every destination. On an 8x8 grid the same tile sees 4 of the 16
        -----+------        destinations.
        8  9 | 10 11
       12 13 | 14 15

        >>> tiles = cut_into_tiles(Grid(4, 4), sx=2, sy=2, tile=2)
        >>> tiles.sources.reshape(tiles.num_tiles, -1).tolist()
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
        >>> tiles.destinations.reshape(tiles.num_tiles, -1).tolist()
        [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    """
    num_depths, num_rows, num_columns = grid.frames // st, grid.height // sy, grid.width // sx
    # Along each side, the band of tiles that each cell falls into.
    row_band, column_band = divide_evenly(num_rows, max(1, tile // sy)), divide_evenly(num_columns, max(1, tile // sx))
    num_column_bands, tiles_a_frame = column_band[-1] + 1, (row_band[-1] + 1) * (column_band[-1] + 1)
    frame, row, column = np.unravel_index(np.arange(grid.num_tokens), (grid.frames, grid.height, grid.width))
    tile_of = (
        np.minimum(frame // st, num_depths - 1) * tiles_a_frame
        + row_band[np.minimum(row // sy, num_rows - 1)] * num_column_bands
        + column_band[np.minimum(column // sx, num_columns - 1)]
    )
    cells, rest = grid.cells(sx, sy, st)
    sources, place_of_source = _group_by_tile(tile_of[np.concatenate([cells[:, 1:].ravel(), rest])])
    seen_rows, seen_columns = _widen_bands(row_band), _widen_bands(column_band)
    seen_cells = (seen_rows[:, None, :, None] * num_columns + seen_columns[None, :, None, :]).reshape(tiles_a_frame, -1)
    destinations = np.arange(num_depths)[:, None, None] * (num_rows * num_columns) + seen_cells
    num_tiles, (_, num_destinations) = len(sources), seen_cells.shape
    return TileIndices(
        num_tiles, sources.ravel(), destinations.ravel(),
        tile_offset=np.repeat(np.arange(num_tiles) * num_destinations, sources.shape[1])[None],
        place_of_source=place_of_source if len(place_of_source) < sources.size else None,
    )  # fmt: skip


def split_by_tile(partition: Partition, grid: Grid, tile: int | None, stride: tuple[int, int, int]) -> Tiles | None:
    """Find the tokens of a partition's tiles; None for a single tile.

    ``stride`` is ``(sx, sy, st)``. Over several frames tokens are compared with those of the same cell's frames only,
    also without ``tile``, so the cost is linear in the frames.
    """
    sx, sy, st = stride
    if tile is None and st == 1:
        return None
    indices = cut_into_tiles(grid, sx, sy, tile or max(grid.height, grid.width), st)
    if indices.num_tiles == 1:
        return None
    indices = load_constants(indices)
    return Tiles(
        paddle.gather(partition.sources, indices.sources),
        paddle.gather(partition.destinations, indices.destinations), indices,
    )  # fmt: skip


def find_nearest_in_tiles(
    x: paddle.Tensor, partition: Partition, tiles: Tiles
) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
    """Find the most similar destination of each source in its tile.

    Returns:
        The sources as tokens, int64 ``[S]``, each once; the cosine of each, and the index of its destination among all
        of the partition, both ``[batch, S]`` as of ``find_nearest``.
    """
    indices = tiles.indices
    cosine, nearest = find_nearest(x, tiles.sources, tiles.destinations, indices.num_tiles)
    nearest = paddle.gather(indices.destinations, (nearest + indices.tile_offset).flatten()).reshape(nearest.shape)
    if indices.place_of_source is None:
        return tiles.sources, cosine, nearest
    cosine, nearest = (paddle.index_select(each, indices.place_of_source, axis=1) for each in (cosine, nearest))
    return partition.sources, cosine, nearest


def _widen_bands(band_of: np.ndarray) -> np.ndarray:
    """List the cells of each band and beside it, padded.

    Example:
        >>> _widen_bands(np.array([0, 0, 1, 1])).tolist()
        [[0, 1, 2], [1, 2, 3]]
    """
    first = np.flatnonzero(np.diff(band_of, prepend=-1))
    end = np.append(first[1:], len(band_of))
    first, last = np.maximum(first - 1, 0), np.minimum(end, len(band_of) - 1)
    return np.minimum(first[:, None] + np.arange((last - first).max() + 1), last[:, None])


def _group_by_tile(tile_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the members of each tile, padded, and the place of each.

    Example:
        >>> index, places = _group_by_tile(np.array([0, 1, 0, 0]))
        >>> index.tolist(), places.tolist()
        ([[0, 2, 3], [1, 1, 1]], [0, 3, 1, 2])
    """
    order = np.argsort(tile_of, kind="stable")
    counts = np.bincount(tile_of)
    first = np.cumsum(counts) - counts
    index = order[first[:, None] + np.minimum(np.arange(counts.max()), counts[:, None] - 1)]
    return index, np.unique(index, return_index=True)[1]
