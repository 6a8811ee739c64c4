"""Images of groups of merged tokens."""

import numpy as np
from PIL import Image

from ppdiffusers_tome.tools.recorder import MergeRecord

_HUE_STEP = (5**0.5 - 1) / 2  # of the color wheel, from one group to the next; the golden ratio keeps neighbors apart


def draw_groups(image: Image.Image, record: MergeRecord) -> Image.Image:
    """Draw the groups of merged tokens over their image.

    Every group has its mean color. A group of several tokens, which may lie anywhere, has an outline of its own color;
    tokens that did not merge have none.
    """
    from skimage.segmentation import find_boundaries

    grid = record.grid
    rows, columns = _find_tokens_of_pixels(image.height, grid.height), _find_tokens_of_pixels(image.width, grid.width)
    group_of_pixel = record.groups.reshape(grid.height, grid.width)[rows[:, None], columns]
    flat = group_of_pixel.ravel()
    num_groups = len(record.sizes)
    counts = np.maximum(np.bincount(flat, minlength=num_groups), 1)
    channels = np.asarray(image.convert("RGB")).reshape(-1, 3).T
    means = [np.bincount(flat, weights=channel, minlength=num_groups) / counts for channel in channels]
    pixels = np.stack(means, axis=-1)[group_of_pixel]
    outlines = find_boundaries(group_of_pixel) & (record.sizes > 1)[group_of_pixel]
    pixels[outlines] = _make_colors(num_groups)[group_of_pixel[outlines]]
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def _find_tokens_of_pixels(pixels: int, tokens: int) -> np.ndarray:
    """Find the token that each pixel of a line belongs to."""
    # A level halves the grid before it and rounds up, so a token mostly covers a power of two, and the last one less.
    for covered in (2**power for power in range(pixels.bit_length())):
        if -(-pixels // covered) == tokens:
            return np.arange(pixels) // covered
    return np.arange(pixels) * tokens // pixels


def _make_colors(count: int) -> np.ndarray:
    """Return vivid colors, ``[count, 3]``, each far from the previous one."""
    hues = np.arange(count) * _HUE_STEP % 1 * 255
    hsv = np.stack([hues, np.full(count, 220.0), np.full(count, 250.0)], axis=-1).astype(np.uint8)
    return np.asarray(Image.fromarray(hsv[None], "HSV").convert("RGB"))[0]
