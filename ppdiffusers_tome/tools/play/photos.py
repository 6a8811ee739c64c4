"""Pictures that people hand over: read in memory, never written to the disk, and refused in words. Knows no gradio."""

from __future__ import annotations

import base64
import binascii
import io
import threading
import warnings
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.images import read_image
from ppdiffusers_tome.tools.play.requests import RefusedError

if TYPE_CHECKING:
    from PIL import Image

MOST_BYTES = 20 * 2**20
_MOST_PIXELS = 50_000_000
_LEAST_SIDE, _MOST_SIDE = 16, 2048  # the second of what is kept: more than pictures are drawn with
# Of what Pillow reads; some of the others run programs, and nobody photographs in them.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_READING = threading.Lock()  # one at a time, as one of the most pixels takes a GiB while it is read


def read_photo(address: str) -> Image.Image:
    """A picture in RGB as people see it, made smaller where it is large; of an animation the first frame.

    Args:
        address: a data URL, as browsers make of a file.

    Raises:
        RefusedError: it is too large a file, no picture, or one too large or too small.
    """
    _, mark, encoded = address.partition(";base64,")
    if len(encoded) * 3 // 4 > MOST_BYTES:
        raise RefusedError("large_file", most=MOST_BYTES // 2**20)
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError("no_picture", formats=", ".join(_FORMATS)) from error
    if not mark or not content:
        raise RefusedError("no_picture", formats=", ".join(_FORMATS))
    return _opened(content)


def _opened(content: bytes) -> Image.Image:
    from PIL import Image

    Image.init()  # or of these formats it knows the commonest alone
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that are refused here, and of oddities that are none
            with _READING, Image.open(io.BytesIO(content), formats=_FORMATS) as file:
                _check_size(*file.size)
                picture = read_image(content, formats=_FORMATS)
                picture.thumbnail((_MOST_SIDE, _MOST_SIDE))
    except RefusedError:
        raise
    except Exception as error:  # decoders of broken files raise whatever they come upon
        raise RefusedError("no_picture", formats=", ".join(_FORMATS)) from error
    return picture


def _check_size(width: int, height: int) -> None:
    values = {"width": f"{width:,}", "height": f"{height:,}"}
    if width * height > _MOST_PIXELS:
        raise RefusedError("large_picture", **values, most=_MOST_PIXELS // 1_000_000)
    if min(width, height) < _LEAST_SIDE:
        raise RefusedError("small_picture", **values, least=_LEAST_SIDE)
