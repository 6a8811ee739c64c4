"""How similar a picture is to another: PSNR and SSIM, by scikit-image, and FLIP, by its authors' flip-evaluator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

# Pixels a degree of the eye's angle, which decide how fine a detail counts: as flip-evaluator has them, a monitor 0.7 m
# wide and away with 3840 pixels across.
FLIP_PPD = 67


@dataclass(frozen=True)
class Similarity:
    """Of a picture to another.

    Attributes:
        psnr: peak signal to noise ratio in dB; infinite when the pictures are identical.
        ssim: structural similarity, 1 when they are identical.
        flip: what the eye sees of their difference when it looks at them in turns, 0 when they are identical, to 1
            (LDR-FLIP, Andersson et al. 2020, https://doi.org/10.1145/3406183), mean over the pixels.
    """

    psnr: float
    ssim: float
    flip: float

    def __str__(self) -> str:
        return "identical" if math.isinf(self.psnr) else f"PSNR {self.psnr:.1f} dB, SSIM {self.ssim:.3f}"


def psnr_of(reference: np.ndarray, picture: np.ndarray) -> float:
    """As ``Similarity`` has it; the other two take a hundred times as long.

    Args:
        reference, picture: uint8 ``[height, width, 3]``.
    """
    from skimage.metrics import peak_signal_noise_ratio

    if np.array_equal(reference, picture):
        return math.inf
    return float(peak_signal_noise_ratio(reference, picture, data_range=255))


def compare_pictures(reference: np.ndarray, picture: np.ndarray) -> Similarity:
    """Compare a picture with the one it should look like.

    Args:
        reference, picture: uint8 ``[height, width, 3]``, each side at least 7 pixels.
    """
    import flip_evaluator
    from skimage.metrics import structural_similarity

    if np.array_equal(reference, picture):
        return Similarity(math.inf, 1.0, 0.0)
    shown = [np.ascontiguousarray(each, np.float32) / 255 for each in (reference, picture)]
    _, flip, _ = flip_evaluator.evaluate(*shown, "LDR", applyMagma=False, parameters={"ppd": FLIP_PPD})
    return Similarity(
        psnr=psnr_of(reference, picture),
        ssim=float(structural_similarity(reference, picture, data_range=255, channel_axis=2)),
        flip=float(flip),
    )


def format_psnr(psnr: float | None) -> str:
    """``27.13`` -> ``27.1``; ``identical`` where it is infinite, ``-`` where there is none."""
    if psnr is None:
        return "-"
    return f"{psnr:.1f}" if math.isfinite(psnr) else "identical"


def similarity_to_dict(similarity: Similarity | None) -> dict[str, float | None]:
    """As JSON has it, which knows no infinite number: the PSNR of identical pictures is null, beside an SSIM of 1."""
    if similarity is None:
        return {"psnr_db": None, "ssim": None, "flip": None}
    psnr = similarity.psnr if math.isfinite(similarity.psnr) else None
    return {"psnr_db": psnr, "ssim": similarity.ssim, "flip": similarity.flip}


def similarity_from_dict(values: Mapping[str, float | None]) -> Similarity | None:
    """What ``similarity_to_dict`` described."""
    psnr, ssim, flip = values["psnr_db"], values["ssim"], values["flip"]
    if ssim is None or flip is None:
        return None
    return Similarity(math.inf if psnr is None else psnr, ssim, flip)
