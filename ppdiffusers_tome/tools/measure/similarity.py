"""Similarity of images: PSNR, SSIM by scikit-image, FLIP by its authors' flip-evaluator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Pixels per degree of the eye's angle, which decide how fine a detail counts; flip-evaluator's default: a monitor 0.7 m
# wide and 0.7 m away, with 3840 pixels across.
_FLIP_PPD = 67


@dataclass(frozen=True)
class Similarity:
    """The similarity of an image to a reference.

    Attributes:
        psnr: peak signal-to-noise ratio in dB; infinite for identical images.
        ssim: structural similarity; 1 for identical images.
        flip: the difference that an eye sees when the images alternate, 0 (identical) to 1, mean over the pixels
            (LDR-FLIP, Andersson et al. 2020, https://doi.org/10.1145/3406183).
    """

    psnr: float
    ssim: float
    flip: float

    def __str__(self) -> str:
        return "identical" if math.isinf(self.psnr) else f"PSNR {self.psnr:.1f} dB, SSIM {self.ssim:.3f}"


def compare_images(reference: np.ndarray, image: np.ndarray) -> Similarity:
    """Compare an image with its reference.

    Args:
        reference, image: uint8 ``[height, width, 3]``, each side at least 7 pixels.
    """
    import flip_evaluator
    import numpy as np
    from skimage.metrics import structural_similarity

    from ppdiffusers_tome.tuning.images import compute_psnr

    if np.array_equal(reference, image):
        return Similarity(math.inf, 1.0, 0.0)
    fractions = [np.ascontiguousarray(pixels, np.float32) / 255 for pixels in (reference, image)]
    _, flip, _ = flip_evaluator.evaluate(*fractions, "LDR", applyMagma=False, parameters={"ppd": _FLIP_PPD})
    return Similarity(
        psnr=compute_psnr(reference, image),
        ssim=float(structural_similarity(reference, image, data_range=255, channel_axis=2)),
        flip=float(flip),
    )


def format_psnr(psnr: float) -> str:
    """Return ``27.1``, or ``identical`` where it is infinite."""
    return f"{psnr:.1f}" if math.isfinite(psnr) else "identical"


def similarity_to_dict(similarity: Similarity | None) -> dict[str, float | None]:
    """Return plain values; an infinite PSNR, which JSON lacks, is null."""
    if similarity is None:
        return {"psnr_db": None, "ssim": None, "flip": None}
    psnr = similarity.psnr if math.isfinite(similarity.psnr) else None
    return {"psnr_db": psnr, "ssim": similarity.ssim, "flip": similarity.flip}
