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

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.tools.files import write_atomically

if TYPE_CHECKING:
    from PIL import Image

SETTINGS_KEY = "ppdiffusers_tome"
_MAX_SLUG, _MAX_SLUG_BYTES = 60, 120


def read_image(source: str | PathLike[str] | bytes, *, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Read an image file, or its bytes, as people see it.

    The image is rotated as its EXIF data says. CMYK, palettes and gray become RGB, transparent parts white; the
    lightest gray of more than 8 bits becomes white. ``formats`` are those of Pillow to accept, such as
    ``PNG``; None for all.

    Raises:
        ToMeValueError: there is no such file, or it is incomplete or no image.
    """
    import numpy as np
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        with Image.open(io.BytesIO(content), formats=formats) as file:
            image = ImageOps.exif_transpose(file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        name = "the file" if isinstance(source, bytes) else str(source)[:200]
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({getattr(error, 'strerror', None) or error})"
        raise ToMeValueError(f"{name} cannot be read as an image{reason}; give a PNG or JPEG file") from error
    if image.mode.startswith("I") or image.mode == "F":  # gray of more than 8 bits, which Pillow would cut off
        values = np.nan_to_num(np.asarray(image, np.float32)).clip(0)
        return Image.fromarray((values * (255 / max(1e-9, float(values.max())))).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def slugify(text: str) -> str:
    """Turn a prompt into a part of a file name.

    ``A red circle!`` becomes ``a-red-circle``, ``一只猫。`` becomes ``一只猫``. Letters and digits of any script stay.
    The result is short enough for every file system, in characters and in bytes.
    """
    letters = unicodedata.normalize("NFC", text.lower())
    plain = "".join(letter if unicodedata.category(letter)[0] in "LMN" else "-" for letter in letters)
    words = re.sub("-+", "-", plain)[:_MAX_SLUG].encode()[:_MAX_SLUG_BYTES].decode(errors="ignore")
    return words.strip("-") or "image"


def write_image(path: Path, image: Image.Image, settings: Mapping[str, Any]) -> None:
    """Write a whole PNG with its settings inside, for ``read_settings``."""
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    chunks.add_text(SETTINGS_KEY, json.dumps(settings, sort_keys=True))
    write_atomically(path, lambda file: image.save(file, format="PNG", pnginfo=chunks))


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings that ``write_image`` wrote; others raise a ``KeyError``."""
    from PIL import Image

    with Image.open(path) as image:
        return json.loads(image.info[SETTINGS_KEY])
