"""The edges that guide a ControlNet: from a photo by Canny, from a file as they are, or from a drawn scene."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from ppdiffusers_tome.tools.bundled.scenes import Scene


@dataclass(frozen=True)
class EdgeSource:
    """A picture file that edges come from.

    Attributes:
        path: the file.
        option: ``--image`` for a photo, ``--control-image`` for edges.
        low, high: thresholds of Canny, 0 or more.
    """

    path: Path
    option: str = "--image"
    low: float = 100
    high: float = 200

    def check(self) -> None:
        """Say early what is wrong with the file or the thresholds.

        Raises:
            UserError: it cannot be read as a picture, or the thresholds are out of order.
        """
        self._read()
        if not 0 <= self.low <= self.high:
            raise UserError(
                f"--canny-low {self.low:g} and --canny-high {self.high:g} must be 0 or more, low not above high; "
                "100 and 200 are usual"
            )

    def load(self, height: int, width: int) -> Image.Image:
        """The edges as a picture of that size, white on black."""
        from PIL import Image

        picture = self._read()
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.LANCZOS)
        return canny(picture, self.low, self.high) if self.option == "--image" else picture

    def to_dict(self) -> dict[str, Any]:
        """As plain values; the file by its name alone."""
        thresholds = {"canny_low": self.low, "canny_high": self.high} if self.option == "--image" else {}
        return {"option": self.option, "file": self.path.name, **thresholds}

    def _read(self) -> Image.Image:
        from PIL import Image, ImageOps, UnidentifiedImageError

        if not os.path.exists(self.path):  # Path raises at names that are too long
            raise UserError(f"{self.option} {self.path} does not exist; give the path of a picture file")
        try:
            with Image.open(self.path) as file:
                return ImageOps.exif_transpose(file).convert("RGB")
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
            raise UserError(
                f"{self.option} {self.path} cannot be read as a picture{reason}; give a PNG or JPEG file"
            ) from error


def canny(picture: Image.Image | np.ndarray, low: float = 100, high: float = 200) -> Image.Image:
    """Canny edges of a picture, white on black, RGB."""
    import cv2
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.repeat(cv2.Canny(np.asarray(picture), low, high)[..., None], 3, axis=2))


def scene_edges(prompt: str, height: int, width: int) -> Image.Image:
    """Edges of a scene of the bundled model, drawn from its prompt; of a stock scene for other prompts."""
    import numpy as np
    from PIL import Image

    from ppdiffusers_tome.tools.bundled.scenes import parse_prompt, render

    try:
        scene = parse_prompt(prompt)
    except ValueError:
        scene = parse_prompt("a white star left of a red circle on a blue background")
    drawn = (render(_laid_out(scene), max(height, width)) * 255).round().astype(np.uint8)
    picture = Image.fromarray(drawn).resize((width, height), Image.Resampling.LANCZOS)
    return canny(picture)


def _laid_out(scene: Scene) -> Scene:
    """Give the shapes of a scene that was read from words a place."""
    from ppdiffusers_tome.tools.bundled.scenes import RELATIONS

    if scene.relation is None:
        return replace(scene, shapes=tuple(replace(shape, radius=0.25) for shape in scene.shapes))
    dx, dy = RELATIONS[scene.relation]
    placed = [
        replace(shape, x=0.5 + side * 0.24 * dx, y=0.5 + side * 0.24 * dy, radius=0.18, angle=0.1 * side)
        for shape, side in zip(scene.shapes, (1, -1), strict=True)
    ]
    return replace(scene, shapes=tuple(placed))
