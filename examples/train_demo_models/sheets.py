"""What one looks at while a model is trained: sheets of pictures, and PSNR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def to_pixels(pictures: np.ndarray) -> torch.Tensor:
    """float32 ``[batch, height, width, 3]`` in [0, 1] -> ``[batch, 3, height, width]`` in [-1, 1]."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2) * 2 - 1


def to_pictures(pixels: torch.Tensor) -> np.ndarray:
    """The way back from ``to_pixels``, clipped to what a picture can show."""
    return (pixels.float() / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()


def write_sheet(path: Path, rows: Sequence[np.ndarray], size: int = 256) -> None:
    """Write rows of pictures, each ``[count, height, width, 3]`` in [0, 1], one below the other."""
    lines = []
    for row in rows:
        images = [Image.fromarray((picture * 255).round().astype(np.uint8)) for picture in row]
        lines.append(np.concatenate([np.asarray(i.resize((size, size), Image.Resampling.BOX)) for i in images], axis=1))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(lines)).save(path)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of two pictures in [0, 1]."""
    return float(-10 * np.log10(np.mean((a - b) ** 2)))
