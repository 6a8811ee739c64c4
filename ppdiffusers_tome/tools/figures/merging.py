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

    group_of_pixel = _expand_to_pixels(record.groups.reshape(record.grid.height, record.grid.width), image)
    flat = group_of_pixel.ravel()
    num_groups = len(record.sizes)
    counts = np.maximum(np.bincount(flat, minlength=num_groups), 1)
    channels = np.asarray(image.convert("RGB")).reshape(-1, 3).T
    means = [np.bincount(flat, weights=channel, minlength=num_groups) / counts for channel in channels]
    pixels = np.stack(means, axis=-1)[group_of_pixel]
    outlines = find_boundaries(group_of_pixel) & (record.sizes > 1)[group_of_pixel]
    pixels[outlines] = _make_colors(num_groups)[group_of_pixel[outlines]]
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def _expand_to_pixels(tokens: np.ndarray, image: Image.Image) -> np.ndarray:
    """Expand a value per token to one per pixel."""
    rows, columns = _token_of_pixel(image.height, tokens.shape[0]), _token_of_pixel(image.width, tokens.shape[1])
    return tokens[rows[:, None], columns]


def _token_of_pixel(pixels: int, tokens: int) -> np.ndarray:
    """Return the token that each pixel of a line belongs to."""
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
