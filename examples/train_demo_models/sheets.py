"""Sheets of images, and their PSNR, to check a model while it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def to_tensor(images: np.ndarray) -> torch.Tensor:
    """Convert float32 ``[batch, height, width, 3]`` in [0, 1] for an autoencoder.

    Returns:
        ``[batch, 3, height, width]`` in [-1, 1].
    """
    return torch.from_numpy(images).permute(0, 3, 1, 2) * 2 - 1


def to_images(pixels: torch.Tensor) -> np.ndarray:
    """Undo ``to_tensor``, and clip to [0, 1]."""
    return (pixels.float() / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()


def write_sheet(path: Path, rows: Sequence[np.ndarray], size: int = 256) -> None:
    """Write rows of images, each ``[count, height, width, 3]`` in [0, 1]."""
    lines = []
    for row in rows:
        images = [Image.fromarray((pixels * 255).round().astype(np.uint8)) for pixels in row]
        lines.append(np.concatenate([np.asarray(i.resize((size, size), Image.Resampling.BOX)) for i in images], axis=1))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(lines)).save(path)


def compute_psnr(first: np.ndarray, second: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of two images in [0, 1], in dB."""
    return float(-10 * np.log10(np.mean((first - second) ** 2)))
