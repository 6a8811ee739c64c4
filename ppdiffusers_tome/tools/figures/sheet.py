"""A labelled sheet of images: rows of prompts, columns of settings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from ppdiffusers_tome.tools.figures.plots import DPI, FAINT, INK, measure_width, plot_style, render

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
    """Lay out images with their labels.

    Args:
        title: above everything.
        columns: above each column.
        rows: the prompt above each row, and its cells, one per column.
    """
    width, height = _compute_cell_size(rows[0][1][0].image)
    page = _Page(len(columns), width, max(14, width // 20))
    page.add_labels([title], 1.5, page.width)
    page.y += page.font_size / 2
    page.add_labels(columns, 1.2, width)
    for prompt, cells in rows:
        page.y += page.font_size
        page.add_texts([[(prompt, 1.0, INK)]], page.width)
        page.add_images([_resize(cell.image, width, height) for cell in cells])
        page.add_texts([[(cell.caption, 1.0, FAINT)] for cell in cells], width)
    return page.render()


class _Page:
    """Texts and images at their places in pixels, from top to bottom."""

    def __init__(self, num_columns: int, column_width: int, font_size: int) -> None:
        self.font_size, self.column_step = font_size, column_width + _GAP
        self.width = num_columns * self.column_step - _GAP
        self.y: float = _MARGIN
        self._texts: list[tuple[int, float, str, float, str]] = []
        self._images: list[tuple[int, int, Image.Image]] = []

    def add_labels(self, labels: Sequence[Label], scale: float, width: int) -> None:
        """Add labels side by side, their titles larger than the lines by ``scale``."""
        self.add_texts(
            [[(label.title, scale, INK), *((line, 1.0, FAINT) for line in label.lines)] for label in labels], width
        )

    def add_texts(self, columns: Sequence[Sequence[tuple[str, float, str]]], width: int) -> None:
        """Add columns of paragraphs, each with its font scale and color."""
        bottoms = [self.y]
        for number, paragraphs in enumerate(columns):
            y = self.y
            for text, scale, color in paragraphs:
                points = self.font_size * scale * 72 / DPI
                for line in _wrap(text, points, width):
                    self._texts.append((_MARGIN + number * self.column_step, y, line, points, color))
                    y += self.font_size * scale * _LINE_HEIGHT
            bottoms.append(y)
        self.y = max(bottoms)

    def add_images(self, images: Sequence[Image.Image]) -> None:
        """Add images side by side."""
        top = round(self.y + self.font_size / 5)
        self._images += [(_MARGIN + number * self.column_step, top, image) for number, image in enumerate(images)]
        self.y = top + max(image.height for image in images) + self.font_size / 5

    def render(self) -> Image.Image:
        """Render texts and images on white."""
        from matplotlib.figure import Figure

        width, height = self.width + 2 * _MARGIN, round(self.y) + _MARGIN
        with plot_style():
            figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
            for x, y, text, points, color in self._texts:
                figure.text(x / width, 1 - y / height, text, size=points, color=color, va="top")
            sheet = render(figure)
        for left, top, image in self._images:
            sheet.paste(image, (left, top))
        return sheet


def _wrap(text: str, points: float, width: int) -> list[str]:
    """Break a text into lines of a width in pixels, paths at separators."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    breakable = re.sub(r"(?<=[./_])(?=[^\W\d])", "\0 ", text)
    characters = len(breakable)
    lines = [text] if text else []
    while characters > 1 and max((measure_width(line, points) for line in lines), default=0) > width:
        characters = max(1, int(characters * 0.9))
        lines = [line.replace("\0 ", "").rstrip("\0") for line in textwrap.wrap(breakable, characters)]
    return lines


def _compute_cell_size(image: Image.Image) -> tuple[int, int]:
    """Enlarge tiny images by whole numbers until labels fit; shrink huge ones."""
    width, height = image.size
    scale = -(-_MIN_CELL // width) if width < _MIN_CELL else min(1.0, _MAX_CELL / max(width, height))
    return round(width * scale), round(height * scale)


def _resize(image: Image.Image, width: int, height: int) -> Image.Image:
    resampling = Image.Resampling.NEAREST if width > image.width else Image.Resampling.LANCZOS
    return image.convert("RGB").resize((width, height), resampling)
