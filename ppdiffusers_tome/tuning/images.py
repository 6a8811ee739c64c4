"""Images of pipelines' outputs as arrays, and their similarity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.errors import ToMeTypeError
from ppdiffusers_tome.settings.text import describe_type


def read_first_image(output: Any) -> np.ndarray:
    """Read the first image of a pipeline's output.

    Args:
        output: with ``images``, one PIL image or a list of them.

    Returns:
        uint8 ``[height, width, 3]``.

    Raises:
        ToMeTypeError: it holds no PIL images, as of latents, videos or audio.
    """
    images = getattr(output, "images", output)
    image = images[0] if isinstance(images, list | tuple) and images else images
    if not isinstance(image, Image.Image):
        raise ToMeTypeError(
            f"tune compares PIL images, and this call returned a {describe_type(image)}; let the call return images "
            "(output_type='pil'), or choose settings by hand"
        )
    return np.asarray(image.convert("RGB"))


def compute_psnr(reference: np.ndarray, pixels: np.ndarray) -> float:
    """Compute the PSNR of two uint8 images in dB; infinite if identical."""
    squared_error = np.mean(np.square(reference.astype(np.float64) - pixels))
    return math.inf if squared_error == 0 else 10 * math.log10(255**2 / squared_error)
