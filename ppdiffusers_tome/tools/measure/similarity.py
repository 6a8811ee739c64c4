"""Similarity of images: PSNR, and SSIM by scikit-image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


class Similarity(NamedTuple):
    """The similarity of an image to a reference."""

    psnr: float  # peak signal-to-noise ratio in dB; infinite for identical images
    ssim: float  # structural similarity; 1 for identical images

    def __str__(self) -> str:
        return "identical" if math.isinf(self.psnr) else f"PSNR {self.psnr:.1f} dB, SSIM {self.ssim:.3f}"


def compare_images(reference: Image.Image | np.ndarray, image: Image.Image | np.ndarray) -> Similarity:
    """Compare an image with its reference, RGB of 7 pixels a side or more."""
    import numpy as np
    from skimage.metrics import structural_similarity

    from ppdiffusers_tome.tuning.trials import compute_psnr

    first, second = np.asarray(reference), np.asarray(image)
    ssim = structural_similarity(first, second, data_range=255, channel_axis=2)
    return Similarity(compute_psnr(first, second), float(ssim))


def format_psnr(psnr: float) -> str:
    """Return ``27.1``, or ``identical`` where it is infinite."""
    return f"{psnr:.1f}" if math.isfinite(psnr) else "identical"
