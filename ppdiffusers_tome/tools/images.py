"""Image files, read as people see them. Imports no Paddle."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.files import write_atomically

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from PIL.ImageFile import ImageFile

BLACK, CONTRAST = "black", "contrast"
SETTINGS_KEY = "ppdiffusers_tome"
_BAND_ROWS = 64  # converted to 8 bits at once, as the whole image in float64 takes gigabytes
# White in files of fractions, and of 8, 10, 12, 14 and 16 bits.
_WHITES = (1.0, 255.0, 1023.0, 4095.0, 16_383.0, 65_535.0)
_MAX_SLUG, _MAX_SLUG_BYTES = 60, 120
_ACCENTS = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")  # of decomposed letters
_SEPARATORS = re.compile(r"[\x00-/:-`{-\x7f]+")  # all of ASCII but digits and small letters


def read_image(
    source: str | PathLike[str] | bytes, *, background: str = CONTRAST, formats: tuple[str, ...] | None = None
) -> Image.Image:
    """Read an image file as people see it.

    The image is rotated as its EXIF data says. More than 8 bits are scaled by the range in use, where Pillow would cut
    them off: cameras of 12 bits write files of 16, whose upper 4 are then empty. CMYK, palettes and gray become RGB.

    Args:
        source: the path of a file, or its bytes.
        background: what replaces transparency: ``BLACK``; or ``CONTRAST``, white, or black where the rest is light, so
            that a drawing without a background stays visible.
        formats: the formats of Pillow to accept, such as ``PNG``; None for all.

    Returns:
        An image in RGB.

    Raises:
        OSError, SyntaxError, ValueError: as Pillow for files that are incomplete or no images.
    """
    from PIL import Image

    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    with Image.open(io.BytesIO(content), formats=formats) as file:
        return _convert(file, content, background)


def _convert(file: ImageFile, content: bytes, background: str) -> Image.Image:
    import numpy as np
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(_decode_16_bits(file, content) or file)
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_scale_to_8_bits(np.asarray(image))).convert("RGB")
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    color = "black" if background == BLACK or _is_light(image) else "white"
    return Image.alpha_composite(Image.new("RGBA", image.size, color), image).convert("RGB")


def _decode_16_bits(file: ImageFile, content: bytes) -> Image.Image | None:
    """Decode colors of 16 bits, of which Pillow keeps 8; None for other files."""
    import cv2
    import numpy as np
    from PIL import Image

    stored = str(file.tile[0].args) if file.tile else ""  # such as RGB;16B
    if file.mode not in ("RGB", "RGBA", "LA") or ";16" not in stored:
        return None
    file.load()  # raises for incomplete files
    values = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None or values.dtype != np.uint16 or values.ndim < 3:
        return None
    image = Image.fromarray(_scale_to_8_bits(values[..., 2::-1]))  # OpenCV's order is blue, green, red
    if values.shape[2] == 4:
        image.putalpha(Image.fromarray((values[..., 3] >> 8).astype(np.uint8)))
    image.info["exif"] = file.getexif().tobytes()
    return image


def _scale_to_8_bits(values: np.ndarray) -> np.ndarray:
    """Scale numbers so that the white of their range becomes 255."""
    import numpy as np

    bands = np.array_split(values, range(_BAND_ROWS, len(values), _BAND_ROWS))
    highest = max(float(np.nan_to_num(band.astype(np.float64)).max()) for band in bands)
    white = next((white for white in _WHITES if highest <= white), highest)
    scaled = [np.clip(np.nan_to_num(band.astype(np.float64)) * (255 / white), 0, 255).round() for band in bands]
    return np.concatenate([band.astype(np.uint8) for band in scaled])


def _is_light(image: Image.Image) -> bool:
    """Return True where the opaque part of an RGBA image is light."""
    import numpy as np

    alpha, brightness = np.asarray(image.getchannel("A")), np.asarray(image.convert("L"))
    # Without an image in float64, which einsum sums up in pieces.
    total = float(np.einsum("ij,ij->", brightness, alpha, dtype=np.float64, casting="unsafe"))
    return total / max(1.0, float(alpha.sum())) > 127


def slugify(text: str) -> str:
    """Turn a prompt into a part of a file name.

    ``A red circle!`` becomes ``a-red-circle``, ``一只猫。`` becomes ``一只猫``. Letters and digits of any script stay,
    accents on Latin letters go. The result is short enough for every file system, in characters and in bytes.
    """
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text).lower()))
    if not plain.isascii():
        plain = "".join(letter if unicodedata.category(letter)[0] in "LMN" else "-" for letter in plain)
    words = _SEPARATORS.sub("-", plain)[:_MAX_SLUG].encode()[:_MAX_SLUG_BYTES].decode(errors="ignore")
    return words.strip("-") or "image"


def write_image(
    path: Path, image: Image.Image, settings: Mapping[str, Any] | None = None, *, overwrite: bool = False
) -> None:
    """Write a whole PNG with its settings inside, for ``read_settings``."""
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    if settings is not None:
        chunks.add_text(SETTINGS_KEY, json.dumps(settings, sort_keys=True))
    write_atomically(path, lambda file: image.save(file, format="PNG", pnginfo=chunks), overwrite=overwrite)


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of an image; one without any is a ``UserError``."""
    from PIL import Image

    with Image.open(path) as image:
        text = image.info.get(SETTINGS_KEY)
    if text is None:
        raise UserError(f"{path} holds no settings; it was not made by this program")
    return json.loads(text)
