"""Picture files of any kind as people see them: turned as the camera says, in 8 bits, and nothing transparent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from PIL.ImageFile import ImageFile

BLACK, SHOWING = "black", "showing"
_ROWS = 64  # that are made 8 bits of at once
# What stands for white in numbers of any kind: shares, and 8, 10, 12, 14 and 16 bits.
_WHITES = (1.0, 255.0, 1023.0, 4095.0, 16_383.0, 65_535.0)


def as_seen(file: ImageFile, read: Callable[[], bytes], *, behind: str) -> Image.Image:
    """A picture in RGB.

    More than 8 bits are scaled by the range in use, where Pillow would cut them off: cameras of 12 bits write files of
    16, whose upper 4 are then empty.

    Args:
        file: as Pillow opened it.
        read: gives all bytes of the same file.
        behind: what becomes of what is transparent: ``BLACK``, or with ``SHOWING`` white, and black where the rest is
            light, so that whatever was drawn on nothing can be seen.

    Raises:
        OSError, SyntaxError, ValueError: as Pillow does of files that are not whole.
    """
    import numpy as np
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(_with_all_bits(file, read))
    if picture.mode.startswith("I") or picture.mode == "F":
        return Image.fromarray(_in_8_bits(np.asarray(picture))).convert("RGB")
    if picture.mode not in ("RGBA", "LA", "PA") and "transparency" not in picture.info:
        return picture.convert("RGB")
    seen = picture.convert("RGBA")
    ground = Image.new("RGBA", seen.size, BLACK if behind == BLACK or _is_light(seen) else "white")
    return Image.alpha_composite(ground, seen).convert("RGB")


def _with_all_bits(file: ImageFile, read: Callable[[], bytes]) -> Image.Image:
    """A file of colours with 16 bits each as OpenCV reads it; Pillow keeps the upper 8 of them. Others as they are."""
    import cv2
    import numpy as np
    from PIL import Image

    stored = str(file.tile[0].args) if file.tile else ""  # such as RGB;16B
    if file.mode not in ("RGB", "RGBA", "LA") or ";16" not in stored:
        return file
    file.load()  # which tells of files that are not whole
    values = cv2.imdecode(np.frombuffer(read(), np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None or values.dtype != np.uint16 or values.ndim < 3:
        return file
    picture = Image.fromarray(_in_8_bits(values[..., 2::-1]))  # OpenCV's colours are blue, green, red
    if values.shape[2] == 4:
        picture.putalpha(Image.fromarray((values[..., 3] >> 8).astype(np.uint8)))
    picture.info["exif"] = file.getexif().tobytes()
    return picture


def _in_8_bits(values: np.ndarray) -> np.ndarray:
    """Numbers of any kind as uint8: the next of those that stand for white in files, or the highest, becomes 255."""
    import numpy as np

    # A few rows at a time: the whole in float64 takes gigabytes.
    bands = np.array_split(values, range(_ROWS, len(values), _ROWS))
    highest = max(float(np.nan_to_num(band.astype(np.float64)).max()) for band in bands)
    white = next((white for white in _WHITES if highest <= white), highest)
    seen = np.empty(values.shape, np.uint8)
    for band, into in zip(bands, np.array_split(seen, range(_ROWS, len(seen), _ROWS)), strict=True):
        into[...] = np.clip(np.nan_to_num(band.astype(np.float64)) * (255 / white), 0, 255).round()
    return seen


def _is_light(picture: Image.Image) -> bool:
    """Whether what is there of an RGBA picture is rather light than dark."""
    import numpy as np

    share, brightness = np.asarray(picture.getchannel("A")), np.asarray(picture.convert("L"))
    # Without pictures in float64, which einsum sums up in pieces.
    total = float(np.einsum("ij,ij->", brightness, share, dtype=np.float64, casting="unsafe"))
    return total / max(1.0, float(share.sum())) > 127
