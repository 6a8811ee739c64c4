"""Sources and destinations: one destination in every cell of the stride.

The random choice is a hash of seed, timestep and grid, computed on the device that holds the timestep. So it moves no
global generator, costs no transfer to the host, is the same for every image of one batch or of several calls, and is a
part of the graph when a model is traced. (tomesd's forked generator gives up randomness for odd batches.)
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constant, load_constants
from ppdiffusers_tome.merging.grid import Grid

# Above the 1000 timesteps of a model. Products of two residues stay below 2**24, as some compilers compute integers in
# float32 (OpenVINO).
_PRIME = 2039


@dataclass(frozen=True, eq=False)
class Partition:
    """Sources and destinations of a grid, as token numbers."""

    sources: Constant  # int64 [S], cell by cell, then those in no cell
    destinations: Constant  # int64 [D], one a cell, in the order of the cells
    num_rest: int = 0  # how many sources are in no cell, past the last whole one
    prefix: int = 0  # how many tokens precede those of the grid; they are neither
    random_numbers: paddle.Tensor | None = None  # int64 [D], others at every timestep; None: nothing is random

    def shift(self, prefix: int) -> "Partition":
        """Move the grid behind ``prefix`` other tokens."""
        return replace(self, sources=self.sources + prefix, destinations=self.destinations + prefix, prefix=prefix)


def regular_partition(grid: Grid, sx: int, sy: int, *, st: int = 1) -> Partition:
    """Choose the top left token of every cell (``use_rand=False``).

    Example:
        >>> partition = regular_partition(Grid(2, 4), sx=2, sy=2)
        >>> partition.destinations.tolist(), partition.sources.tolist()
        ([0, 2], [1, 4, 5, 3, 6, 7])
    """
    return load_constants(_list_regular(grid, sx, sy, st))


def random_partition(
    grid: Grid, sx: int, sy: int, *, seed: int, timestep: paddle.Tensor | None, st: int = 1
) -> Partition:
    """Choose one token of every cell at random.

    This is section 4.1 of Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023). At least one cell must fit.
    Of ``timestep``, a scalar or ``[batch]`` of any number type, the first entry counts, so that all images share their
    destinations; it is None where a model has no timestep.
    """
    cells = load_constants(_list_random(grid, sx, sy, seed, st))
    if timestep is None:
        key = paddle.zeros([1], dtype="int64")
    else:
        # Timesteps may be fractional (Euler, Karras): 1/1024 of a step tells them apart.
        key = (timestep.reshape([-1])[:1].astype("float32") * 1024.0).astype("int64") % _PRIME
    # A quadratic in the key (mod p) with random coefficients a cell: a hash by which cells are independent and so
    # are any three timesteps. (A line would let the evenly spaced steps of a schedule fall into a short cycle.)
    hashed = (cells.quadratic * key + cells.linear) % _PRIME
    hashed = (hashed * key + cells.constant) % _PRIME
    chosen = hashed % (st * sx * sy)
    destinations = paddle.gather(cells.offsets, chosen) + cells.corner
    sources = (paddle.gather(cells.source_offsets, chosen) + cells.corner.unsqueeze(1)).flatten()
    if cells.rest is not None:
        sources = paddle.concat([sources, cells.rest])
    return Partition(sources, destinations, cells.num_rest, random_numbers=hashed)


@dataclass(frozen=True, eq=False)
class _Cells:
    """The constants of all random partitions of a grid, int64."""

    corner: Constant  # [cells], the top left token of each cell's first frame
    offsets: Constant  # [tokens of a cell], the distance of each from the corner
    source_offsets: Constant  # [tokens of a cell, one less], in row c the offsets of all tokens but the c-th
    rest: Constant  # tokens in no cell, or None
    num_rest: int  # how many those are
    quadratic: Constant  # [cells], coefficients of the hash
    linear: Constant
    constant: Constant


@lru_cache(maxsize=32)
def _list_regular(grid: Grid, sx: int, sy: int, st: int) -> Partition:
    cells, rest = grid.cells(sx, sy, st)
    return Partition(np.concatenate([cells[:, 1:].ravel(), rest]), cells[:, 0], len(rest))


@lru_cache(maxsize=32)
def _list_random(grid: Grid, sx: int, sy: int, seed: int, st: int) -> _Cells:
    cells, rest = grid.cells(sx, sy, st)
    offsets, numbers = cells[0] - cells[0, 0], np.arange(cells.shape[1])
    source_offsets = offsets[(numbers[:, None] + numbers[1:]) % len(offsets)]
    over_frames = [grid.frames, st] if st > 1 else []
    draw = np.random.default_rng([seed, grid.height, grid.width, sx, sy, *over_frames])
    quadratic, linear, constant = draw.integers(0, _PRIME, (3, len(cells)), dtype=np.int64)
    return _Cells(
        cells[:, 0], offsets, source_offsets, rest if len(rest) else None, len(rest), quadratic, linear, constant,
    )  # fmt: skip
