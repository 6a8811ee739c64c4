"""The grid of tokens that a block works on, without Paddle."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Grid:
    """A grid of tokens, numbered row by row and frame by frame."""

    height: int
    width: int
    frames: int = 1

    def __str__(self) -> str:
        """Write ``64x96``, and of three frames ``3x64x96``."""
        return "x".join(map(str, self.shape))

    @cached_property
    def num_tokens(self) -> int:
        """The number of tokens in all frames."""
        return self.frames * self.height * self.width

    @property
    def shape(self) -> tuple[int, ...]:
        """``(height, width)``, and of several frames ``(frames, height, width)``."""
        return (self.height, self.width) if self.frames == 1 else (self.frames, self.height, self.width)

    @property
    def frame(self) -> "Grid":
        """The grid of one frame."""
        return Grid(self.height, self.width)

    def num_merged(self, ratio: float) -> int:
        """Count the tokens that a ratio merges: 0.5 of 64x64 is 2,048."""
        return int(self.num_tokens * ratio)

    def cells(self, sx: int, sy: int, st: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """List the tokens of every cell, and those in no cell.

        Returns:
            int64 ``[cells, st * sy * sx]``, of each cell the top left token of its first frame first; and int64
            ``[rest]``, the tokens past the last whole cell (always sources, as in tomesd).

        Example:
            >>> cells, rest = Grid(height=2, width=5).cells(sx=2, sy=2)
            >>> cells.tolist(), rest.tolist()
            ([[0, 1, 5, 6], [2, 3, 7, 8]], [4, 9])
        """
        frames, rows, columns = self.frames // st * st, self.height // sy * sy, self.width // sx * sx
        numbers = np.arange(self.num_tokens, dtype=np.int64).reshape(self.frames, self.height, self.width)
        whole = numbers[:frames, :rows, :columns].reshape(frames // st, st, rows // sy, sy, columns // sx, sx)
        in_no_cell = np.ones(numbers.shape, bool)
        in_no_cell[:frames, :rows, :columns] = False
        return whole.transpose(0, 2, 4, 1, 3, 5).reshape(-1, st * sy * sx), numbers[in_no_cell]


@dataclass(frozen=True)
class Layout:
    """A grid of tokens and its place in the sequence."""

    grid: Grid
    prefix: int = 0  # how many other tokens precede it

    @cached_property
    def num_tokens(self) -> int:
        """The number of tokens, those before the grid included."""
        return self.prefix + self.grid.num_tokens


def divide_evenly(length: int, at_most: int) -> np.ndarray:
    """Number the parts of a line that is cut evenly.

    Returns:
        int64 ``[length]``, the part of each place; parts are as few as can be and at most ``at_most`` long.

    Example:
        >>> divide_evenly(5, at_most=2).tolist()
        [0, 0, 1, 1, 2]
    """
    parts = np.array_split(np.arange(length), -(-length // at_most))
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])
