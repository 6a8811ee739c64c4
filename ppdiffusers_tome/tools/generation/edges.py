"""The edges that guide a ControlNet: from a photo by Canny, or from a file as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.images import BLACK, CONTRAST, read_image

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from PIL.ImageFile import ImageFile

    from ppdiffusers_tome.tools.demo_model.photographs import Subject

CROP, PAD, STRETCH = "crop", "pad", "stretch"
# What becomes of a file of another shape than the picture, in words.
FIT_MODES = {CROP: "its middle is used", PAD: "all of it is used, padded with black", STRETCH: "it is stretched"}
_END_OF_JPEG, _END_BYTES = b"\xff\xd9", 4096
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)  # of EXIF, and those in which height and width change places


@dataclass(frozen=True)
class EdgeSource:
    """A picture file that edges come from.

    Attributes:
        path: the file.
        option: ``--image`` for a photo, ``--control-image`` for edges.
        low, high: thresholds of Canny, 0 or more.
        fit: one of ``FIT_MODES``, for a file of another shape than the picture.
    """

    path: Path
    option: str = "--image"
    low: float = 100
    high: float = 200
    fit: str = CROP

    def check(self) -> None:
        """Say early what is wrong with the file or the thresholds.

        Raises:
            UserError: it cannot be read as a picture, or the thresholds are out of order.
        """
        self.check_file()
        if not 0 <= self.low <= self.high:
            raise UserError(
                f"--canny-low {self.low:g} and --canny-high {self.high:g} must be 0 or more, low not above high; "
                "100 and 200 are usual"
            )

    def check_file(self) -> None:
        """Make sure that the file is a picture, and whole, for less than what using it takes.

        Raises:
            UserError: it is not.
        """
        with self._opened() as file:
            file.draft("L", (1, 1))  # of a JPEG all bytes are read, and an eighth of each side computed
            file.load()

    def check_end(self) -> None:
        """Make sure that the file begins as a picture and was not cut off: for next to nothing of a JPEG or PNG.

        A JPEG says where it ends, and a PNG has checksums; what else is wrong is found by its use.

        Raises:
            UserError: it is no picture, or was cut off.
        """
        with self._opened() as file:
            whole = _ends_well(file, self.path)
        if not whole:
            self.check_file()

    def load(self, height: int, width: int) -> Image.Image:
        """The edges as a picture of that size, white on black."""
        from PIL import Image

        picture = self._fitted(height, width)
        edges = detect_edges(picture, self.low, self.high) if self.is_photo else picture
        if edges.size == (width, height):
            return edges
        padded = Image.new("RGB", (width, height))
        padded.paste(edges, ((width - edges.width) // 2, (height - edges.height) // 2))
        return padded

    @property
    def is_photo(self) -> bool:
        """Whether edges are looked for in it; otherwise it holds them."""
        return self.option == "--image"

    def describe_fit(self, height: int, width: int) -> str | None:
        """A sentence: what is used of a file of another shape than a picture of this size; None where it is all."""
        with self._opened() as file:
            turned = file.getexif().get(_ORIENTATION) in _TURNED
            own = (file.height, file.width) if turned else file.size
        if _inside(own, (width, height)) == (width, height):
            return None
        others = " and ".join(f"--fit {fit}" for fit in FIT_MODES if fit != self.fit)
        return (
            f"{self.option} {self.path} is {own[0]}x{own[1]} and the picture {width}x{height}: {FIT_MODES[self.fit]}; "
            f"{others} are other ways"
        )

    def describe_missing_edges(self, height: int, width: int) -> str:
        """A sentence: why it gives a picture of this size no edges, and what to do."""
        what = f"{self.option} {self.path}"
        if not self.is_photo:
            return f"{what} is black all over, which guides nothing; give edges in white on black"
        if all(low == high for low, high in self._fitted(height, width).getextrema()):  # type: ignore[misc]
            return f"{what} is of one colour where it is used, so it has no edges; give another photo"
        return f"{what} gives no edges; lower --canny-low and --canny-high"

    def to_dict(self) -> dict[str, Any]:
        """As plain values; the file by its name alone."""
        thresholds = {"canny_low": self.low, "canny_high": self.high} if self.is_photo else {}
        return {"option": self.option, "file": self.path.name, "fit": self.fit, **thresholds}

    def _fitted(self, height: int, width: int) -> Image.Image:
        """What is used of the file, at the size of the picture, or inside it where black is to be added."""
        with self._opened():
            picture = read_image(self.path, background=CONTRAST if self.is_photo else BLACK)
        return fit_image(picture, height, width, self.fit)

    @contextmanager
    def _opened(self) -> Iterator[ImageFile]:
        """The file; what is wrong with it, found now or while it is used, is a ``UserError``."""
        from PIL import Image, UnidentifiedImageError

        if not os.path.exists(self.path):  # Path raises at names that are too long
            raise UserError(f"{self.option} {self.path} does not exist; give the path of a picture file")
        try:
            with Image.open(self.path) as file:
                yield file
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
            raise UserError(
                f"{self.option} {self.path} cannot be read as a picture{reason}; give a PNG or JPEG file"
            ) from error


def _ends_well(file: ImageFile, path: Path) -> bool:
    """Whether a picture is seen to be whole: a PNG by its checksums, a JPEG by its end with only zeros behind it."""
    if file.format == "PNG":
        with suppress(OSError, SyntaxError):
            file.verify()
            return True
    if file.format != "JPEG":
        return False
    with path.open("rb") as content:
        content.seek(-min(_END_BYTES, content.seek(0, os.SEEK_END)), os.SEEK_END)
        return content.read().rstrip(b"\0").endswith(_END_OF_JPEG)


def _inside(size: tuple[int, int], into: tuple[int, int]) -> tuple[int, int]:
    """Width and height of a picture that is made as large as fits into another, in its own proportions."""
    scale = min(into[0] / size[0], into[1] / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def fit_image(picture: Image.Image, height: int, width: int, fit: str = CROP) -> Image.Image:
    """What is used of a picture of another shape, at that size, or inside it where black is to be added (``PAD``)."""
    from PIL import Image, ImageOps

    if fit == CROP:
        return ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    size = _inside(picture.size, (width, height)) if fit == PAD else (width, height)
    return picture.resize(size, Image.Resampling.LANCZOS)


def detect_edges(picture: Image.Image | np.ndarray, low: float = 100, high: float = 200) -> Image.Image:
    """Canny edges of a picture, white on black, RGB."""
    import cv2
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.repeat(cv2.Canny(np.asarray(picture), low, high)[..., None], 3, axis=2))


def compute_photograph_edges(subject: Subject, height: int, width: int) -> Image.Image:
    """Canny edges of a photograph that scikit-image holds, white on black, RGB.

    Args:
        subject: the photograph.
        height, width: of the edges, in pixels.
    """
    from ppdiffusers_tome.tools.demo_model.photographs import square_image

    return detect_edges(fit_image(square_image(subject, max(height, width)), height, width))
