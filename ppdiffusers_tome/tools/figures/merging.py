"""Images of the groups of merged tokens, and of how often each merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.recorder import MergeRecord, MergingBlock

_SHEET_PIXELS = 512  # an image that a sheet shows smaller than it is has thicker outlines, to stay a pixel wide there
_HUE_STEP = (5**0.5 - 1) / 2  # of the color wheel, from one group to the next; the golden ratio keeps neighbors apart
_RED = np.array([214, 39, 40], np.float64)


def draw_groups(image: Image.Image, record: MergeRecord) -> Image.Image:
    """Draw the groups of merged tokens over their image.

    Every group has its mean color. A group of several tokens, which may lie anywhere, has an outline of its own color;
    tokens that did not merge have none.

    Args:
        image: of any size and mode; the result has the same size, in RGB.
        record: of one call of a block.
    """
    group_of_pixel = _expand_to_pixels(record.groups.reshape(record.grid.height, record.grid.width), image)
    flat = group_of_pixel.ravel()
    num_groups = len(record.sizes)
    counts = np.maximum(np.bincount(flat, minlength=num_groups), 1)
    channels = np.asarray(image.convert("RGB")).reshape(-1, 3).T
    means = [np.bincount(flat, weights=channel, minlength=num_groups) / counts for channel in channels]
    pixels = np.stack(means, axis=-1)[group_of_pixel]
    outlines = _find_outlines(group_of_pixel) & (record.sizes > 1)[group_of_pixel]
    pixels[outlines] = _make_colors(num_groups)[group_of_pixel[outlines]]
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def draw_merge_frequency(image: Image.Image, grid: Grid, frequency: np.ndarray) -> Image.Image:
    """Draw how often each token merged over the pale image, from pale to red.

    Args:
        image: of any size and mode; the result has the same size, in RGB.
        grid: of the block.
        frequency: ``[height, width]`` of the grid, 0 to 1.
    """
    gray = np.asarray(image.convert("L"), np.float64)[..., None]
    pale = 255 - (255 - gray) / 2
    pixels = pale + (_RED - pale) * _expand_to_pixels(frequency, image)[..., None]
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def compute_merge_frequency(records: Sequence[MergeRecord], num_calls: int) -> np.ndarray:
    """Return in which fraction of the calls each token merged, ``[height, width]``."""
    return np.sum([record.merged for record in records], axis=0) / num_calls


def first_blocks_by_level(blocks: Iterable[MergingBlock]) -> list[MergingBlock]:
    """Return the first block of each denoiser and level."""
    first: dict[tuple[str, int], MergingBlock] = {}
    for block in blocks:
        first.setdefault((block.denoiser, block.level), block)
    return list(first.values())


def spread_calls(num_calls: int, count: int) -> list[int]:
    """Choose at most ``count`` calls, numbered from 0, evenly from first to last."""
    return sorted({round(place * (num_calls - 1) / max(1, count - 1)) for place in range(count)})


def _expand_to_pixels(tokens: np.ndarray, image: Image.Image) -> np.ndarray:
    """Expand a value per token, ``[height, width]`` of the grid, to one per pixel."""
    rows, columns = _token_of_pixel(image.height, tokens.shape[0]), _token_of_pixel(image.width, tokens.shape[1])
    return tokens[rows[:, None], columns]


def _token_of_pixel(pixels: int, tokens: int) -> np.ndarray:
    """Return the token of a row or column that each pixel belongs to."""
    # A level halves the grid before it and rounds up, so a token mostly covers a power of two, and the last one less.
    for covered in (2**power for power in range(pixels.bit_length())):
        if -(-pixels // covered) == tokens:
            return np.arange(pixels) // covered
    return np.arange(pixels) * tokens // pixels


def _find_outlines(group_of_pixel: np.ndarray) -> np.ndarray:
    """Return True at the pixels that touch another group."""
    from scipy.ndimage import maximum_filter1d, minimum_filter1d

    size = 1 + 2 * -(-max(group_of_pixel.shape) // _SHEET_PIXELS)
    rows, columns = (
        maximum_filter1d(group_of_pixel, size, axis) != minimum_filter1d(group_of_pixel, size, axis) for axis in (0, 1)
    )
    return rows | columns


def _make_colors(count: int) -> np.ndarray:
    """Return vivid colors, ``[count, 3]``, each far from the previous one."""
    hues = np.arange(count) * _HUE_STEP % 1 * 255
    hsv = np.stack([hues, np.full(count, 220.0), np.full(count, 250.0)], axis=-1).astype(np.uint8)
    return np.asarray(Image.fromarray(hsv[None], "HSV").convert("RGB"))[0]
