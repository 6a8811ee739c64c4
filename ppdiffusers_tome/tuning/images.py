"""Images of pipelines' outputs as arrays, and their similarity."""

import math
from typing import Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.errors import ToMeTypeError
from ppdiffusers_tome.settings.text import describe_type


def read_images(output: Any) -> list[np.ndarray]:
    """Return the PIL images of a pipeline's output as uint8 ``[height, width, 3]``."""
    images = getattr(output, "images", output[0] if isinstance(output, tuple) else output)
    images = images if isinstance(images, list | tuple) and images else [images]
    for image in images:
        if not isinstance(image, Image.Image):
            found = describe_type(image)
            raise ToMeTypeError(f"tune compares PIL images, and this call returned a {found}; choose settings by hand")
    return [np.asarray(image.convert("RGB")) for image in images]


def compute_psnr(reference: np.ndarray, pixels: np.ndarray) -> float:
    """Compute the PSNR of two uint8 images in dB; infinite if identical."""
    squared_error = np.mean(np.square(reference.astype(np.float64) - pixels))
    return math.inf if squared_error == 0 else 10 * math.log10(255**2 / squared_error)
