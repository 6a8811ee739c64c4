"""Similarity of images: PSNR, and SSIM by scikit-image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Similarity:
    """The similarity of an image to a reference.

    Attributes:
        psnr: peak signal-to-noise ratio in dB; infinite for identical images.
        ssim: structural similarity; 1 for identical images.
    """

    psnr: float
    ssim: float

    def __str__(self) -> str:
        return "identical" if math.isinf(self.psnr) else f"PSNR {self.psnr:.1f} dB, SSIM {self.ssim:.3f}"

    def to_dict(self) -> dict[str, float | None]:
        """Return plain values; an infinite PSNR, which JSON lacks, is null."""
        return {"psnr_db": self.psnr if math.isfinite(self.psnr) else None, "ssim": self.ssim}


def compare_images(reference: np.ndarray, image: np.ndarray) -> Similarity:
    """Compare an image with its reference.

    Args:
        reference, image: uint8 ``[height, width, 3]``, each side at least 7 pixels.
    """
    from skimage.metrics import structural_similarity

    from ppdiffusers_tome.tuning.images import compute_psnr

    ssim = structural_similarity(reference, image, data_range=255, channel_axis=2)
    return Similarity(compute_psnr(reference, image), float(ssim))


def format_psnr(psnr: float) -> str:
    """Return ``27.1``, or ``identical`` where it is infinite."""
    return f"{psnr:.1f}" if math.isfinite(psnr) else "identical"
