"""How similar a picture is to another: PSNR and SSIM, by scikit-image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Similarity:
    """Of a picture to another.

    Attributes:
        psnr: peak signal to noise ratio in dB; infinite when the pictures are identical.
        ssim: structural similarity, 1 when they are identical.
    """

    psnr: float
    ssim: float

    def __str__(self) -> str:
        return "identical" if math.isinf(self.psnr) else f"PSNR {self.psnr:.1f} dB, SSIM {self.ssim:.3f}"


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


def format_psnr(psnr: float | None) -> str:
    """``27.13`` -> ``27.1``; ``identical`` where it is infinite, ``-`` where there is none."""
    if psnr is None:
        return "-"
    return f"{psnr:.1f}" if math.isfinite(psnr) else "identical"


def similarity_to_dict(similarity: Similarity | None) -> dict[str, float | None]:
    """As JSON has it, which knows no infinite number: the PSNR of identical pictures is null, beside an SSIM of 1."""
    if similarity is None:
        return {"psnr_db": None, "ssim": None}
    return {"psnr_db": similarity.psnr if math.isfinite(similarity.psnr) else None, "ssim": similarity.ssim}


def similarity_from_dict(values: Mapping[str, float | None]) -> Similarity | None:
    """What ``similarity_to_dict`` described."""
    psnr, ssim = values["psnr_db"], values["ssim"]
    return None if ssim is None else Similarity(math.inf if psnr is None else psnr, ssim)
