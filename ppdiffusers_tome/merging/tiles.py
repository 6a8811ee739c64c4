"""ToMe's matching inside tiles of the grid: its cost grows with the tokens, not with their square.

What a token resembles most is nearly always near it, so little is lost when it is compared with its own tile alone
(locality: ToMA, Lu et al., ICML 2025). Its tile's sources see one cell beyond the tile as well, so that what is beside
a token is never out of reach, as in comparing each token with its neighbours (CoReDiT, arXiv 2605.14191). Which sources
merge is still decided over the whole picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.merging.bipartite import merge_most_similar
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.gradients import disable_gradients
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.similarity import find_nearest


@dataclass(frozen=True, eq=False)
class Tiles:
    """A grid cut into tiles of whole cells, as numbers of a partition's sources and destinations.

    Tiles hold nearly equal numbers; where one holds fewer than the largest, an entry is repeated.

    Attributes:
        sources: int64 ``[tiles, S of the largest]``, numbers of sources, each in one tile.
        destinations: int64 ``[tiles, D of the largest]``, numbers of the destinations that these are compared with,
            in the tile and in the cells around it, of the same frames.
        repeated: bool ``[tiles, S of the largest]``, which of ``sources`` are there a second time.
    """

    sources: np.ndarray
    destinations: np.ndarray
    repeated: np.ndarray

    @property
    def number(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class TiledPartition:
    """A partition by tiles.

    Attributes:
        partition: all of the grid.
        sources: int64 ``[tiles * S of the largest]``, tokens.
        destinations: int64 ``[tiles * D of the largest]``, tokens.
        number: int64 ``[tiles * D of the largest]``, each destination's number in the partition.
        first: int64 ``[1, tiles * S of the largest]``, where in ``number`` the tile of each source begins.
        demoted: float32 ``[tiles * S of the largest]``, to be added to similarities: what is repeated ranks last.
            None where all tiles are alike.
        num_tiles: how many there are.
    """

    partition: Partition
    sources: paddle.Tensor
    destinations: paddle.Tensor
    number: paddle.Tensor
    first: paddle.Tensor
    rank_penalty: paddle.Tensor | None
    num_tiles: int


@lru_cache(maxsize=32)
def cut_into_tiles(grid: Grid, sx: int, sy: int, tile: int, st: int = 1) -> Tiles:
    """Cut a grid into tiles of at most ``tile`` by ``tile`` tokens, one cell deep, all of nearly the same size.

    Tokens past the last whole cell belong to the tile beside them.
    """
    times, rows, columns = grid.frames // st, grid.height // sy, grid.width // sx
    # Whole cells a side; array_split keeps the tiles within one cell of each other.
    of_row = _split(rows, max(1, tile // sy))
    of_column = _split(columns, max(1, tile // sx))
    frame, within = np.divmod(np.arange(grid.num_tokens), grid.single_frame.num_tokens)
    row = np.minimum(within // grid.width // sy, rows - 1)
    column = np.minimum(within % grid.width // sx, columns - 1)
    of_place = of_row[row] * (of_column[-1] + 1) + of_column[column]
    tile_of = np.minimum(frame // st, times - 1) * (of_place.max() + 1) + of_place
    cells, rest = grid.cells(sx, sy, st)
    sources, repeated = _slots(tile_of[np.concatenate([cells[:, 1:].ravel(), rest])])
    near_row, near_column = _with_neighbours(of_row), _with_neighbours(of_column)
    of_frame = (near_row[:, None, :, None] * columns + near_column[None, :, None, :]).reshape(of_place.max() + 1, -1)
    destinations = (np.arange(times)[:, None, None] * (rows * columns) + of_frame).reshape(-1, of_frame.shape[1])
    return Tiles(sources, destinations, repeated)


@disable_gradients
def split_by_tile(partition: Partition, tiles: Tiles, constants: Constants | None = None) -> TiledPartition:
    """Sort a partition by tiles of the same grid and stride; ``constants`` as in ``partition.random_partition``."""
    constant = constants or Constants()
    sources, destinations, first, rank_penalty = _in_a_row(tiles)
    number = constant(destinations)
    return TiledPartition(
        partition,
        paddle.gather(partition.sources, constant(sources)),
        paddle.gather(partition.destinations, number),
        number,
        constant(first),
        constant(rank_penalty) if tiles.repeated.any() else None,
        tiles.number,
    )


@disable_gradients
def match(
    x: paddle.Tensor, tiled: TiledPartition, num_merged: int, min_similarity: float | None = None
) -> Matching | None:
    """Decide which tokens merge.

    Args:
        x: ``[batch, tokens, channels]``, the block's input, any float type.
        tiled: the sources and destinations of the grid.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        min_similarity: the least cosine at which they do; fewer may then merge.

    Returns:
        The matching of the sources with destinations in or beside their tiles; None where none are alike enough.
    """
    similarity, best = find_nearest(x, tiled.sources, tiled.destinations, tiled.num_tiles)
    if tiled.rank_penalty is not None:
        # What is no number (of latents that overflowed) would rank anywhere, also behind what is repeated.
        similarity = paddle.where(paddle.isfinite(similarity), similarity, paddle.full_like(similarity, -2))
        similarity = similarity + tiled.rank_penalty
    best = paddle.gather(tiled.number, (best + tiled.first).flatten()).reshape(best.shape)
    return merge_most_similar(
        similarity, best, tiled.sources, tiled.partition, num_tokens=x.shape[1], num_merged=num_merged,
        min_similarity=min_similarity,
    )  # fmt: skip


@lru_cache(maxsize=32)
def _in_a_row(tiles: Tiles) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sources and destinations tile by tile, and ``first`` and ``rank_penalty`` of a ``TiledPartition``."""
    (number, num_sources), num_destinations = tiles.sources.shape, tiles.destinations.shape[1]
    first = np.repeat(np.arange(number) * num_destinations, num_sources)
    rank_penalty = np.where(tiles.repeated.ravel(), np.float32(-4), np.float32(0))
    return tiles.sources.ravel(), tiles.destinations.ravel(), first[None], rank_penalty


def _split(cells: int, at_most: int) -> np.ndarray:
    """The part that each of ``cells`` cells in a line falls into, parts of at most ``at_most``, ``[cells]``."""
    parts = np.array_split(np.arange(cells), -(-cells // at_most))
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _with_neighbours(part_of: np.ndarray) -> np.ndarray:
    """The cells of each part of a line and one on either side, ``[parts, most]``, the last repeated where it ends."""
    first = np.flatnonzero(np.diff(part_of, prepend=-1))
    end = np.append(first[1:], len(part_of))
    first, last = np.maximum(first - 1, 0), np.minimum(end, len(part_of) - 1)
    return np.minimum(first[:, None] + np.arange((last - first).max() + 1), last[:, None])


def _slots(tile_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers by tile, ``[tiles, most]``, the last repeated where there are fewer; and which are such repetitions."""
    order = np.argsort(tile_of, kind="stable")
    counts = np.bincount(tile_of)
    first = np.cumsum(counts) - counts
    within = np.arange(counts.max())
    slots = order[first[:, None] + np.minimum(within, counts[:, None] - 1)]
    return slots, within >= counts[:, None]
