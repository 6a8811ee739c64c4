"""The similarity of two images."""

import math

import numpy as np


def compute_psnr(reference: np.ndarray, pixels: np.ndarray) -> float:
    """Compute the PSNR of two uint8 images in dB; infinite if identical."""
    squared_error = np.mean(np.square(reference.astype(np.float64) - pixels))
    return math.inf if squared_error == 0 else 10 * math.log10(255**2 / squared_error)
