"""A labelled sheet of images: rows of prompts, columns of settings."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.tools.console.output import warn

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_INK, _FAINT, _DPI = "#1c1c1c", "#757575", 100
# Fonts with Chinese, Japanese and Korean, for the characters that the first one lacks.
_FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "PingFang SC",
    "Microsoft YaHei", "SimHei", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip
_MIN_CELL, _MAX_CELL, _GAP, _MARGIN = 256, 512, 16, 28  # pixels
_LINE_HEIGHT = 1.4  # of the font's size


@dataclass(frozen=True)
class Label:
    """A title and, below it, lines in finer print."""

    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """An image and the caption below it."""

    image: Image.Image
    caption: str = ""


def make_sheet(title: Label, columns: Sequence[Label], rows: Sequence[tuple[str, Sequence[Cell]]]) -> Image.Image:
    """Lay out rows of a prompt and its cells, one per column."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = _compute_cell_size(rows[0][1][0].image)
    font_size = max(14, width // 20)
    lefts = [_MARGIN + number * (width + _GAP) for number in range(len(columns))]
    page_width = lefts[-1] + width - _MARGIN
    images: list[tuple[int, int, Image.Image]] = []
    with _use_fonts():
        figure = Figure(dpi=_DPI)
        add_labels = partial(_add_labels, figure, lefts, font_size)
        y = add_labels([title], 1.5, page_width, _MARGIN) + font_size / 2
        y = add_labels(columns, 1.2, width, y)
        for prompt, cells in rows:
            y = add_labels([Label(prompt)], 1.0, page_width, y + font_size)
            top = round(y + font_size / 5)
            images += [(left, top, _resize(cell.image, width, height)) for left, cell in zip(lefts, cells, strict=True)]
            y = add_labels([Label("", (cell.caption,)) for cell in cells], 1.0, width, top + height + font_size / 5)
        sheet_width, sheet_height = page_width + 2 * _MARGIN, round(y) + _MARGIN
        figure.set_size_inches(sheet_width / _DPI, sheet_height / _DPI)
        for line in figure.texts:
            x, top_of_line = line.get_position()
            line.set_position((x / sheet_width, 1 - top_of_line / sheet_height))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        sheet = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    for left, top, image in images:
        sheet.paste(image, (left, top))
    return sheet


def _add_labels(
    figure: Figure, lefts: Sequence[int], font_size: int, labels: Sequence[Label], scale: float, width: int, top: float
) -> float:
    """Add labels side by side, titles larger by ``scale``; return their bottom."""
    bottoms = [top]
    for left, label in zip(lefts, labels, strict=False):
        bottom = top
        for text, size, color in ((label.title, scale, _INK), *((line, 1.0, _FAINT) for line in label.lines)):
            for line in _wrap(figure, text, font_size * size * 72 / _DPI, width):
                line.set(x=left, y=bottom, color=color, va="top")
                bottom += font_size * size * _LINE_HEIGHT
        bottoms.append(bottom)
    return max(bottoms)


def _wrap(figure: Figure, text: str, points: float, width: int) -> list[Text]:
    """Add a text as lines of a width in pixels."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    # Lines may also break inside a path, after each "\0"; what is left of it is removed.
    breakable = re.sub(r"(?<=[./_])(?=[^\W\d])", "\0 ", text)
    characters = len(breakable)
    lines = [figure.text(0, 0, text, size=points)] if text else []
    while characters > 1 and max((line.get_window_extent().width for line in lines), default=0) > width:
        for line in lines:
            line.remove()
        characters = max(1, int(characters * 0.9))
        broken = [line.replace("\0 ", "").rstrip("\0") for line in textwrap.wrap(breakable, characters)]
        lines = [figure.text(0, 0, line, size=points) for line in broken]
    return lines


def _compute_cell_size(image: Image.Image) -> tuple[int, int]:
    """Enlarge tiny images by whole numbers until labels fit; shrink huge ones."""
    width, height = image.size
    scale = -(-_MIN_CELL // width) if width < _MIN_CELL else min(1.0, _MAX_CELL / max(width, height))
    return round(width * scale), round(height * scale)


def _resize(image: Image.Image, width: int, height: int) -> Image.Image:
    resampling = Image.Resampling.NEAREST if width > image.width else Image.Resampling.LANCZOS
    return image.convert("RGB").resize((width, height), resampling)


@contextmanager
def _use_fonts() -> Iterator[None]:
    """Use the installed fonts; warn once of characters that none has."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    style: Any = {"font.family": [font for font in _FONTS if font in installed], "text.parse_math": False}
    with warnings.catch_warnings(record=True) as caught, matplotlib.rc_context(style):
        warnings.simplefilter("always")
        yield
    if any("missing from" in str(warning.message) for warning in caught):
        warn(
            "no font of this system has all characters of the labels, so some are boxes; install one that has, such as "
            "fonts-noto-cjk on Debian and Ubuntu, google-noto-sans-cjk-fonts on Fedora"
        )
