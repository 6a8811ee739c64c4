"""ToMe's matching inside tiles of the grid: its cost grows with the tokens, not with their square.

What a token resembles most is nearly always near it, so little is lost when it is compared with its own tile alone
(locality: ToMA, Lu et al., ICML 2025). Which sources merge is still decided over the whole picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.bipartite import merge_most_alike, nearest, rows_at_once, unit
from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.partition import Partition


@dataclass(frozen=True, eq=False)
class Tiles:
    """A grid cut into tiles of whole cells, as numbers of a partition's sources and destinations.

    Tiles hold nearly equal numbers; where one holds fewer than the largest, its last entry is repeated.

    Attributes:
        sources: int64 ``[tiles, S of the largest]``, numbers of sources.
        destinations: int64 ``[tiles, D of the largest]``, numbers of destinations.
        position: int64 ``[S]``, where each source stands in ``sources``, counted over all tiles.
    """

    sources: np.ndarray
    destinations: np.ndarray
    position: np.ndarray

    @property
    def number(self) -> int:
        return len(self.sources)


@lru_cache(maxsize=32)
def tiles_of(grid: Grid, sx: int, sy: int, tile: int) -> Tiles:
    """Cut a grid into tiles of at most ``tile`` by ``tile`` tokens, all of nearly the same size.

    Tokens past the last whole cell belong to the tile beside them.
    """
    rows, columns = grid.height // sy, grid.width // sx
    # Whole cells a side; array_split keeps the tiles within one cell of each other.
    of_row = _split(rows, max(1, tile // sy))
    of_column = _split(columns, max(1, tile // sx))
    token = np.arange(grid.num_tokens)
    row = np.minimum(token // grid.width // sy, rows - 1)
    column = np.minimum(token % grid.width // sx, columns - 1)
    tile_of = of_row[row] * (of_column[-1] + 1) + of_column[column]
    cells, rest = grid.cells(sx, sy)
    source_slots, position = _slots(tile_of[np.concatenate([cells[:, 1:].ravel(), rest])])
    return Tiles(source_slots, _slots(tile_of[cells[:, 0]])[0], position)


@paddle.no_grad()
def match(x: paddle.Tensor, partition: Partition, num_merged: int, tiles: Tiles) -> Matching:
    """Decide which tokens merge.

    Args:
        x: ``[batch, tokens, channels]``, the block's input, any float type.
        partition: the sources and destinations of the grid, S + D = tokens.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        tiles: of the same grid and stride.

    Returns:
        The matching of ``num_merged`` sources with destinations of their tiles.
    """
    batch, channels = x.shape[0], x.shape[2]
    (number, num_sources), num_destinations = tiles.sources.shape, tiles.destinations.shape[1]
    destination_numbers = paddle.to_tensor(tiles.destinations.ravel())
    sources = paddle.gather(partition.sources, paddle.to_tensor(tiles.sources.ravel()))
    destinations = paddle.gather(partition.destinations, destination_numbers)

    def tokens(numbers: paddle.Tensor, in_a_tile: int, start: int, stop: int) -> paddle.Tensor:
        """Tokens of tiles ``start`` to ``stop``, ``[batch * tiles, in_a_tile, channels]``."""
        chosen = paddle.index_select(x, numbers[start * in_a_tile : stop * in_a_tile], axis=1)
        return chosen.reshape([-1, in_a_tile, channels])

    step = max(1, rows_at_once(x, number * num_sources, on_a_cpu=2048) // num_sources)
    found = []
    for start in range(0, number, step):
        stop = min(start + step, number)
        similarity, best = nearest(
            tokens(sources, num_sources, start, stop), unit(tokens(destinations, num_destinations, start, stop))
        )
        found.append((similarity.reshape([batch, -1]), best.reshape([batch, -1])))
    similarity, best = (paddle.concat(parts, axis=1) for parts in zip(*found, strict=True))
    position = paddle.to_tensor(tiles.position)
    similarity = paddle.index_select(similarity, position, axis=1)
    # From a number in the tile to the number in the partition.
    best = paddle.index_select(best, position, axis=1) + position // num_sources * num_destinations
    best = paddle.gather(destination_numbers, best.flatten()).reshape(best.shape)
    return merge_most_alike(similarity, best, partition, num_merged)


def _split(cells: int, at_most: int) -> np.ndarray:
    """The part that each of ``cells`` cells in a line falls into, parts of at most ``at_most``, ``[cells]``."""
    parts = np.array_split(np.arange(cells), -(-cells // at_most))
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _slots(tile_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers by tile, ``[tiles, most]``, the last repeated where there are fewer; and where each number stands."""
    order = np.argsort(tile_of, kind="stable")
    counts = np.bincount(tile_of)
    first = np.cumsum(counts) - counts
    within = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
    position = np.empty_like(order)
    position[order] = tile_of[order] * counts.max() + np.arange(len(order)) - first[tile_of[order]]
    return order[first[:, None] + within], position
