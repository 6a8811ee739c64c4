"""Picture files: predictable names, and the settings they were made with inside."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.files import write_whole

if TYPE_CHECKING:
    from PIL import Image

SETTINGS_KEY = "ppdiffusers_tome"
_MAX_SLUG, _MAX_SLUG_BYTES = 60, 120
_ACCENTS = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")  # of decomposed letters
_BETWEEN = re.compile(r"[\x00-/:-`{-\x7f]+")  # all of ASCII but digits and small letters


def slug(text: str) -> str:
    """A prompt as part of a file name: ``A red circle!`` -> ``a-red-circle``, ``一只猫。`` -> ``一只猫``.

    Letters and digits of any script stay, accents on Latin ones go. No file system forbids any of it, and it is short
    enough for all, in characters and in bytes.
    """
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text).lower()))
    if not plain.isascii():
        plain = "".join(letter if unicodedata.category(letter)[0] in "LMN" else "-" for letter in plain)
    words = _BETWEEN.sub("-", plain)[:_MAX_SLUG].encode()[:_MAX_SLUG_BYTES].decode(errors="ignore")
    return words.strip("-") or "picture"


def picture_name(number: int, prompt: str) -> str:
    """The file name of a picture; ``number`` counts from 1."""
    return f"{number:04d}-{slug(prompt)}.png"


def write_picture(
    path: Path, picture: Image.Image, settings: Mapping[str, Any] | None = None, *, overwrite: bool = False
) -> None:
    """Write a PNG with its settings inside, as JSON in a ``tEXt`` chunk; see ``read_settings``.

    Raises:
        UserError: the file exists and must not be replaced, or cannot be written; no partial file is left.
    """
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    if settings is not None:
        chunks.add_text(SETTINGS_KEY, json.dumps(settings, sort_keys=True))
    write_whole(path, lambda file: picture.save(file, format="PNG", pnginfo=chunks), overwrite=overwrite)


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a picture was made with.

    Raises:
        UserError: the picture holds none.
    """
    from PIL import Image

    with Image.open(path) as picture:
        text = picture.info.get(SETTINGS_KEY)
    if text is None:
        raise UserError(f"{path} holds no settings; it was not made by this program")
    return json.loads(text)
