"""Checks of a form and an upload. Imports neither Paddle nor Gradio."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation import settings
from ppdiffusers_tome.tools.images import read_image

if TYPE_CHECKING:
    from PIL import Image

OWN = "own"  # settings of token merging from the form, instead of a preset
# Browsers represent whole numbers exactly up to this one; a rounded seed would generate another image.
MAX_SEED = min(settings.MAX_SEED, 2**53 - 1)
MAX_STEPS = 200  # or one user could keep all others waiting for hours
MIN_RATIO, MAX_CACHE = 0.05, 0.7
MAX_BYTES = 20 * 2**20
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # some others that Pillow reads run programs
_MAX_SIDE = 2048  # of a photo


class RefusedError(Exception):
    """A request that the page refuses.

    Args:
        reason: a key of ``i18n.WORDS``.
        values: what replaces its placeholders; ``field`` is a key of ``i18n.WORDS``, too.
    """

    def __init__(self, reason: str, **values: Any) -> None:
        super().__init__(reason, values)
        self.reason, self.values = reason, values


def check_number(form: Mapping[str, Any], field: str, least: float, most: float, multiple: int | None = None) -> float:
    """Return the number in a field of a form.

    Raises:
        RefusedError: it is not from ``least`` to ``most``, or not a multiple of ``multiple``.
    """
    value = form[field]
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        shown = "-" if value is None else str(value)[:40]
        raise RefusedError("bad_number", field=field, value=shown, least=f"{least:,}", most=f"{most:,}")
    if multiple is not None and value % multiple:
        nearest = round(value / multiple) * multiple
        raise RefusedError("bad_multiple", field=field, value=f"{value:g}", multiple=multiple, nearest=nearest)
    return value


def check_tome(form: Mapping[str, Any]) -> ToMeConfig:
    """Return the settings of token merging in a form.

    Raises:
        RefusedError: a number is out of range.
        ToMeError: they do not go together, or there is no such preset.
    """
    if form["preset"] == OWN:
        config = ToMeConfig(method=str(form["method"]), ratio=check_number(form, "ratio", MIN_RATIO, 1))
    else:
        config = ToMeConfig.preset(form["preset"])  # never named(), which reads files
    return replace(config, cache=check_number(form, "cache", 0, MAX_CACHE), end=check_number(form, "end", 0.1, 1))


def read_photo(content: bytes) -> Image.Image:
    """Decode an image file as people see it, in RGB.

    It is scaled down to 2048 pixels a side.

    Raises:
        RefusedError: it is no image of ``FORMATS``, or it has so many pixels that Pillow warns.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            photo = read_image(content, formats=FORMATS)
    except Exception as error:  # decoders of broken files raise anything
        most = (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise RefusedError("no_image", formats=", ".join(FORMATS), most=most) from error
    photo.thumbnail((_MAX_SIDE, _MAX_SIDE))
    return photo
