"""Pictures of how tokens merged: groups over the picture, as in the papers' figures, and how often each token did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.recorder import MergeRecord

# Where a sheet shows a picture smaller than it is, outlines are to stay a pixel wide.
_SHOWN_PIXELS = 512
# Turns of the colour wheel from one group's outline to the next one's; the golden ratio keeps neighbours apart.
_TURN = (5**0.5 - 1) / 2
_OFTEN = np.array([214, 39, 40], np.float64)


def groups_picture(picture: Image.Image, record: MergeRecord) -> Image.Image:
    """The groups of merged tokens over the picture they belong to.

    Every group has its mean colour, and an outline in a colour of its own where it holds more than one token: its
    tokens may lie anywhere, and the outline tells which belong together. Tokens that did not merge have no outline.

    Args:
        picture: of any size and shape; returned in RGB at the same size.
        record: of the block to show.
    """
    pixels = np.asarray(picture.convert("RGB"))
    numbers = _by_pixel(record.groups.reshape(record.grid.height, record.grid.width), picture)
    flat = numbers.ravel()
    counts = np.maximum(np.bincount(flat, minlength=len(record.sizes)), 1)
    channels = pixels.reshape(-1, 3).T
    means = [np.bincount(flat, weights=channel, minlength=len(counts)) / counts for channel in channels]
    shown = np.stack(means, axis=-1)[numbers]
    outlined = _outlines(numbers) & (record.sizes > 1)[numbers]
    shown[outlined] = _colours(len(counts))[numbers[outlined]]
    return Image.fromarray(np.rint(shown).astype(np.uint8))


def share_picture(picture: Image.Image, grid: Grid, share: np.ndarray) -> Image.Image:
    """How often each token merged, over the pale picture: the redder the oftener.

    Args:
        picture: of any size and shape; returned in RGB at the same size.
        grid: of the block.
        share: ``[height, width]`` of the grid, 0 to 1.
    """
    grey = np.asarray(picture.convert("L"), np.float64)[..., None]
    pale = 255 - (255 - grey) / 2
    by_pixel = _by_pixel(share, picture)[..., None]
    return Image.fromarray(np.rint(pale + (_OFTEN - pale) * by_pixel).astype(np.uint8))


def merged_share(records: Sequence[MergeRecord], calls: int) -> np.ndarray:
    """In which share of all calls each token merged with others, ``[height, width]``; all records of one block."""
    return np.sum([record.merged for record in records], axis=0) / calls


def _by_pixel(tokens: np.ndarray, picture: Image.Image) -> np.ndarray:
    """A value per token, ``[height, width]`` of the grid, as one per pixel, ``[height, width]`` of the picture."""
    rows = _token_of_pixel(picture.height, tokens.shape[0])
    columns = _token_of_pixel(picture.width, tokens.shape[1])
    return tokens[rows[:, None], columns]


def _token_of_pixel(pixels: int, tokens: int) -> np.ndarray:
    """Which token of a row or column each pixel belongs to.

    A level halves what is before it and rounds up, so a token mostly covers a power of two; the last one less.
    """
    for covered in (2**power for power in range(pixels.bit_length())):
        if -(-pixels // covered) == tokens:
            return np.arange(pixels) // covered
    return np.arange(pixels) * tokens // pixels


def _outlines(numbers: np.ndarray) -> np.ndarray:
    """True at the pixels of every group that another one touches."""
    found = np.zeros(numbers.shape, bool)
    width = -(-max(numbers.shape) // _SHOWN_PIXELS)
    for axis in (0, 1):
        values, outlines = np.moveaxis(numbers, axis, 0), np.moveaxis(found, axis, 0)
        for away in range(1, width + 1):
            differs = values[away:] != values[:-away]
            outlines[away:] |= differs
            outlines[:-away] |= differs
    return found


def _colours(count: int) -> np.ndarray:
    """``[count, 3]``: vivid colours, one after the other far apart."""
    hues = np.arange(count) * _TURN % 1 * 255
    hsv = np.stack([hues, np.full(count, 220.0), np.full(count, 250.0)], axis=-1).astype(np.uint8)
    return np.asarray(Image.fromarray(hsv[None], "HSV").convert("RGB"))[0]
