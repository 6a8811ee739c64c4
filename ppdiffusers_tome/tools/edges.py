"""Edges of a photo, which guide a ControlNet."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError, UserError
from ppdiffusers_tome.settings.bounds import check_type
from ppdiffusers_tome.tools.images import read_image

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


def load_edges(path: Path, height: int, width: int) -> Image.Image:
    """Return the edges of a photo at that size, white on black."""
    return detect_edges(fit_image(read_photo_file(path), height, width), name=f"--image {path.name}")


def read_photo_file(path: Path) -> Image.Image:
    """Read the photo of ``--image``; all its faults are a ``UserError``."""
    from PIL import Image

    if not os.path.isfile(path):  # Path raises at names that are too long
        raise UserError(f"--image {str(path)[:200]} is no file; give the path of an image file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the user's own large photo
            return read_image(path)
    except ToMeValueError as error:
        raise UserError(f"--image {error}") from error


def fit_image(image: Image.Image, height: int, width: int) -> Image.Image:
    """Crop the middle of an image, and scale it to a size."""
    from PIL import Image, ImageOps

    check_type(image, Image.Image, "an image; read_image(path) reads a file", "image=")
    return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)


def detect_edges(
    image: Image.Image | np.ndarray, low: float = 100, high: float = 200, *, name: str = "the image"
) -> Image.Image:
    """Detect the Canny edges of an image, white on black.

    An image without any, which would guide nothing, is a warning that calls it ``name``.

    Raises:
        ToMeTypeError, ToMeValueError: ``image`` is none or not uint8, or ``low`` is above ``high``.
    """
    import cv2
    import numpy as np
    from PIL import Image

    check_type(image, Image.Image | np.ndarray, "an image; read_image(path) reads a file", "image=")
    if not 0 <= low <= high:
        raise ToMeValueError(f"low={low:g} and high={high:g} must be 0 or more, low not above high; try 100 and 200")
    pixels = np.asarray(image.convert("RGB") if isinstance(image, Image.Image) else image)
    if pixels.dtype != np.uint8:
        raise ToMeTypeError(f"image must have numbers from 0 to 255, uint8; got {pixels.dtype}: image.astype('uint8')")
    edges = cv2.Canny(pixels, low, high)
    if not edges.any():
        warnings.warn(
            f"{name} has no edges with the thresholds {low:g} and {high:g}, so it guides nothing; give an image with "
            "more contrast, or in Python lower thresholds", stacklevel=2,
        )  # fmt: skip
    return Image.fromarray(edges).convert("RGB")
