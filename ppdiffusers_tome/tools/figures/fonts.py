"""Fonts for whatever people write: Pillow's own for ASCII, others for accents and other scripts."""

from __future__ import annotations

import io
import os
import re
import unicodedata
from contextlib import suppress
from functools import cache, lru_cache
from itertools import count

from PIL import ImageFont

from ppdiffusers_tome.tools.cli.console.output import warn

# Of fonts that have as much of a text, the first of these: clear ones with Chinese, Japanese and Korean, and Latin.
_PREFERRED = (
    "notosanscjk", "notosanssc", "sourcehansans", "wqy-microhei", "wqy-zenhei", "pingfang", "hiragino", "msyh",
    "simhei", "droidsansfallback",
)  # fmt: skip
_SIMPLIFIED = " SC"  # so a file of several faces calls the one with the forms of mainland China
_CHINESE = "图片"  # a font with these has the others too
_ASCII = 128  # characters before this one are in Pillow's font
_LEFT_OUT = "\0"
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def drawable(text: str, size: int) -> tuple[str, Font]:
    """A text as it can be drawn, and the font to draw it with.

    Characters that neither Pillow's font nor any of the system has would be boxes; an ellipsis stands for them instead,
    and a line on standard error says so, once a text.

    Args:
        text: of any script.
        size: of the font, in pixels.
    """
    text = "".join(letter for letter in text if letter.isspace() or unicodedata.category(letter)[0] != "C")
    wanted = frozenset(ord(letter) for letter in text if not letter.isspace())
    if max(wanted, default=0) < _ASCII:
        return text, ImageFont.load_default(size=size)
    path, index, has = _best(wanted)
    font = ImageFont.truetype(path, size, index=index) if path else ImageFont.load_default(size=size)
    if wanted <= has:
        return text, font
    _warn_of(text)
    kept = "".join(letter if ord(letter) in has or letter.isspace() else _LEFT_OUT for letter in text)
    return re.sub(rf"{_LEFT_OUT}(\s*{_LEFT_OUT})*", "…" if ord("…") in has else "...", kept), font


@lru_cache(maxsize=256)
def _best(wanted: frozenset[int]) -> tuple[str, int, frozenset[int]]:
    """The file of a font and the number of a face in it, "" for Pillow's own; and which of the characters it has."""
    best = ("", 0, wanted & _in_default())
    if best[2] == wanted:
        return best
    wanted |= {ord("…")}
    for path in _files():
        has = wanted & _characters(path)
        if len(has - {ord("…")}) > len(best[2] - {ord("…")}):
            best = (path, _face(path), has)
            if wanted <= has:
                break
    return best


@cache
def chinese_family() -> str | None:
    """The family of a font with Chinese that matplotlib knows; None where there is none."""
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    path, _, has = _best(frozenset(map(ord, _CHINESE)))
    if not path or len(has) < len(_CHINESE):
        return None
    family = FT2Font(path).family_name
    return family if any(font.name == family for font in fontManager.ttflist) else None


@cache
def _in_default() -> frozenset[int]:
    """The characters of Pillow's own font."""
    from matplotlib.ft2font import FT2Font

    font = ImageFont.load_default(size=10)
    content = getattr(font, "font_bytes", None)  # which the font of a Pillow without FreeType has not
    return frozenset() if content is None else frozenset(FT2Font(io.BytesIO(content)).get_charmap())


@cache
def _files() -> list[str]:
    """The files of fonts: matplotlib's own, with the letters of Europe, and the system's, preferred ones first."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import findSystemFonts

    def rank(path: str) -> tuple[int, str]:
        name = path.replace("\\", "/").rpartition("/")[2].lower()
        place = next((place for place, known in enumerate(_PREFERRED) if name.startswith(known)), len(_PREFERRED))
        upright = 0 if "regular" in name or not re.search("bold|italic|oblique|light|thin|black", name) else 1
        return 2 * place + upright, path

    # Colour fonts have pictures of a few sizes, which Pillow does not scale.
    found = sorted((path for path in findSystemFonts() if "emoji" not in path.lower()), key=rank)
    return [os.path.join(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), *found]


def _characters(path: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    with suppress(RuntimeError, OSError, ValueError):  # it is none that FreeType reads
        return frozenset(FT2Font(path).get_charmap())
    return frozenset()


def _face(path: str) -> int:
    """Which face of a file to use."""
    if path.lower().endswith(".ttc"):
        with suppress(OSError):  # there are no more
            for index in count():
                if str(ImageFont.truetype(path, 10, index=index).getname()[0]).endswith(_SIMPLIFIED):
                    return index
    return 0


@cache
def _warn_of(text: str) -> None:
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    warn(
        f"no font of this system has all characters of {shown!r}, so some are left out of the picture; install one "
        "that has, such as fonts-noto-cjk on Debian and Ubuntu, google-noto-sans-cjk-fonts on Fedora"
    )
