"""Edges that guide a ControlNet, of a photo or from a file."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import ToMeValueError, UserError
from ppdiffusers_tome.settings.bounds import check_type
from ppdiffusers_tome.tools.images import read_image

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


@dataclass(frozen=True)
class EdgeSource:
    """An image file that edges come from."""

    path: Path
    option: str = "--image"  # for a photo; --control-image for edges

    @property
    def is_photo(self) -> bool:
        """True if edges are detected in it, not given."""
        return self.option == "--image"

    def check(self) -> None:
        """Check that the file is a complete image."""
        self._read()

    def load(self, height: int, width: int) -> Image.Image:
        """Return the edges as an image of that size, white on black."""
        image = fit_image(self._read(), height, width)
        if self.is_photo:
            return detect_edges(image, name=f"{self.option} {self.path.name}")
        dark = image.convert("L").histogram()[:26]
        if not 0.5 < sum(dark) / (height * width) < 1:
            warnings.warn(
                f"{self.option} {self.path.name} does not show edges in white on black, so it may guide nothing: "
                "invert it, draw transparent ones in white, or give a photo as --image", stacklevel=2,
            )  # fmt: skip
        return image

    def to_dict(self) -> dict[str, str]:
        """Return plain values, with the name of the file alone."""
        return {"option": self.option, "file": self.path.name}

    def _read(self) -> Image.Image:
        """Read the file; all its faults are a ``UserError``."""
        from PIL import Image

        if not os.path.isfile(self.path):  # Path raises at names that are too long
            raise UserError(f"{self.option} {str(self.path)[:200]} is no file; give the path of an image file")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the user's own large photo
                return read_image(self.path, background="white" if self.is_photo else "black")
        except ToMeValueError as error:
            raise UserError(f"{self.option} {error}") from error


def fit_image(image: Image.Image, height: int, width: int) -> Image.Image:
    """Crop an image to its middle, and scale it to pixels."""
    from PIL import Image, ImageOps

    check_type(image, Image.Image, "an image; read_image(path) reads a file", "image=")
    return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)


def detect_edges(
    image: Image.Image | np.ndarray, low: float = 100, high: float = 200, *, name: str = "the image"
) -> Image.Image:
    """Detect the Canny edges of an image, white on black.

    An image without any, which would guide nothing, is a warning that calls it ``name``.

    Raises:
        ToMeTypeError, ToMeValueError: ``image`` is none, or ``low`` is above ``high``.
    """
    import cv2
    import numpy as np
    from PIL import Image

    check_type(image, Image.Image | np.ndarray, "an image; read_image(path) reads a file", "image=")
    if not 0 <= low <= high:
        raise ToMeValueError(f"low={low:g} and high={high:g} must be 0 or more, low not above high; try 100 and 200")
    edges = cv2.Canny(np.asarray(image), low, high)
    if not edges.any():
        warnings.warn(
            f"{name} has no edges with the thresholds {low:g} and {high:g}, so it guides nothing; give an image with "
            "more contrast, or in Python lower thresholds", stacklevel=2,
        )  # fmt: skip
    return Image.fromarray(edges).convert("RGB")
