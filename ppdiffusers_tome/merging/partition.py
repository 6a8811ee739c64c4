"""Sources and destinations: one destination in every cell of the stride.

The random choice is a hash of seed, timestep and grid, computed on the device that holds the timestep. So it moves no
global generator, costs no transfer to the host, is the same for every image of one batch or of several calls, and is a
part of the graph when a model is exported. (tomesd's forked generator gives up randomness for odd batches.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid

# A prime below 2**31: a product of two residues stays inside int64.
_PRIME = 2**31 - 1
_PRIME_ARRAY = np.array([_PRIME], np.int64)


@dataclass(frozen=True)
class Partition:
    """Sources and destinations of a grid, as token numbers.

    Attributes:
        sources: int64 ``[S]``, cell by cell, then those in no cell.
        destinations: int64 ``[D]``, one a cell, in the order of the cells.
        num_outside: how many sources are in no cell, past the last whole one.
        prefix: how many tokens precede those of the grid; they are neither.
        random_numbers: int64 ``[D]``, different at every timestep; None where nothing is chosen at random.
    """

    sources: paddle.Tensor
    destinations: paddle.Tensor
    num_outside: int = 0
    prefix: int = 0
    random_numbers: paddle.Tensor | None = None

    def shift(self, prefix: int) -> Partition:
        """Move the grid behind ``prefix`` other tokens."""
        return replace(self, sources=self.sources + prefix, destinations=self.destinations + prefix, prefix=prefix)


def regular_partition(grid: Grid, sx: int, sy: int, constants: Constants | None = None, *, st: int = 1) -> Partition:
    """Choose the top left token of every cell (``use_rand=False``).

    Example:
        >>> partition = regular_partition(Grid(2, 4), sx=2, sy=2)
        >>> partition.destinations.tolist(), partition.sources.tolist()
        ([0, 2], [1, 4, 5, 3, 6, 7])
    """
    sources, destinations = map(constants or Constants(), _list_regular(grid, sx, sy, st))
    return Partition(sources, destinations, grid.num_tokens - len(destinations) * sx * sy * st)


def random_partition(
    grid: Grid, sx: int, sy: int, *,
    seed: int, timestep: paddle.Tensor | None, constants: Constants | None = None, st: int = 1,
) -> Partition:  # fmt: skip
    """Choose one token of every cell at random.

    This is section 4.1 of Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023).

    Args:
        grid: of the tokens; at least one cell must fit.
        sx, sy, st: stride over columns, rows and frames.
        seed: of the random choice.
        timestep: scalar or ``[batch]``, any number type; the first entry counts, so that all images share their
            destinations. None where a model has no timestep.
        constants: keeps the tensors that the next partition of this grid needs again; None keeps none.
    """
    constant, arrays = constants or Constants(), _list_random(grid, sx, sy, seed, st)
    # A tensor: Paddle 2.6 rounds a Python number this large to float32, that is, to 2**31.
    prime = constant(_PRIME_ARRAY)
    if timestep is None:
        key = paddle.zeros([1], dtype="int64")
    else:
        # Timesteps may be fractional (Euler, Karras): 1/1024 of a step tells them apart.
        key = (timestep.reshape([-1])[:1].astype("float32") * 1024.0).astype("int64") % prime
    # A quadratic in the key (mod p) with random coefficients a cell: a hash by which cells are independent and so
    # are any three timesteps. (A line would let the evenly spaced steps of a schedule fall into a short cycle.)
    hashed, *lower = map(constant, arrays.coefficients)
    for coefficient in lower:
        hashed = (hashed * key + coefficient) % prime
    chosen = hashed % (st * sx * sy)
    corner = constant(arrays.corner)
    destinations = paddle.gather(constant(arrays.offsets), chosen) + corner
    sources = (paddle.gather(constant(arrays.source_offsets), chosen) + corner.unsqueeze(1)).flatten()
    if len(arrays.rest):
        sources = paddle.concat([sources, constant(arrays.rest)])
    return Partition(sources, destinations, len(arrays.rest), random_numbers=hashed)


class _RandomArrays(NamedTuple):
    """The constants of all random partitions of a grid, each int64."""

    corner: np.ndarray  # [cells], the top left token of each cell's first frame
    offsets: np.ndarray  # [tokens of a cell], the distance of each from the corner
    source_offsets: np.ndarray  # [tokens of a cell, one less], in row c the offsets of all tokens but the c-th
    rest: np.ndarray  # tokens in no cell
    coefficients: tuple[np.ndarray, ...]  # the three of the hash, each [cells]


@lru_cache(maxsize=32)
def _list_regular(grid: Grid, sx: int, sy: int, st: int) -> tuple[np.ndarray, np.ndarray]:
    cells, rest = grid.cells(sx, sy, st)
    return np.concatenate([cells[:, 1:].ravel(), rest]), cells[:, 0]


@lru_cache(maxsize=32)
def _list_random(grid: Grid, sx: int, sy: int, seed: int, st: int) -> _RandomArrays:
    cells, rest = grid.cells(sx, sy, st)
    offsets = cells[0] - cells[0, 0]
    numbers = np.arange(len(offsets))
    source_offsets = offsets[(numbers[:, None] + numbers[1:]) % len(offsets)]
    over_frames = [grid.frames, st] if st > 1 else []
    draw = np.random.default_rng([seed, grid.height, grid.width, sx, sy, *over_frames])
    coefficients = tuple(draw.integers(0, _PRIME, (3, len(cells)), dtype=np.int64))
    return _RandomArrays(cells[:, 0], offsets, source_offsets, rest, coefficients)
