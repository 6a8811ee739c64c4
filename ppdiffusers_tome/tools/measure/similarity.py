"""Similarity of images: PSNR, and SSIM by scikit-image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


def compare_images(reference: Image.Image | np.ndarray, image: Image.Image | np.ndarray) -> tuple[float, float]:
    """Compute PSNR in dB and SSIM of two images.

    They are RGB, of 7 pixels a side or more. Of identical ones it is infinity and 1.
    """
    import numpy as np
    from skimage.metrics import structural_similarity

    from ppdiffusers_tome.tuning.similarity import compute_psnr

    first, second = np.asarray(reference), np.asarray(image)
    ssim = structural_similarity(first, second, data_range=255, channel_axis=2)
    return compute_psnr(first, second), float(ssim)


def format_psnr(psnr: float) -> str:
    """Return ``27.1``, or ``identical`` where it is infinite."""
    return f"{psnr:.1f}" if math.isfinite(psnr) else "identical"
