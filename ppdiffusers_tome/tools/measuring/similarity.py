"""How far a picture is from another: PSNR and SSIM, by scikit-image."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Similarity:
    """Likeness of two pictures.

    Attributes:
        psnr: peak signal to noise ratio in dB; infinite when the pictures are identical.
        ssim: structural similarity, 1 when they are identical.
    """

    psnr: float
    ssim: float


def compare_pictures(reference: np.ndarray, picture: np.ndarray) -> Similarity:
    """Compare a picture with the one it should look like.

    Args:
        reference, picture: uint8 ``[height, width, 3]``, each side at least 7 pixels.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    if np.array_equal(reference, picture):
        return Similarity(math.inf, 1.0)
    return Similarity(
        psnr=float(peak_signal_noise_ratio(reference, picture, data_range=255)),
        ssim=float(structural_similarity(reference, picture, data_range=255, channel_axis=2)),
    )
