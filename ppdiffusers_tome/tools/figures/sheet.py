"""A labelled sheet of pictures: rows of prompts, columns of settings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageOps

from ppdiffusers_tome.tools.figures.fonts import Font, drawable

_MIN_CELL, _MAX_CELL, _GAP, _MARGIN = 256, 512, 16, 28
_PAPER, _INK, _FAINT = (255, 255, 255), (24, 24, 27), (113, 113, 122)


@dataclass(frozen=True)
class Label:
    """A word or two in large print and, under it, finer print."""

    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A picture and what stands under it."""

    picture: Image.Image
    caption: str = ""


def make_sheet(title: Label, columns: Sequence[Label], rows: Sequence[tuple[str, Sequence[Cell]]]) -> Image.Image:
    """Lay out pictures with their labels.

    Args:
        title: over everything.
        columns: over each column.
        rows: the prompt of each row, written over it, and its cells, one a column.
    """
    width, height = _cell_size(rows[0][1][0].picture)
    size = max(14, width // 20)
    full_width = len(columns) * (width + _GAP) - _GAP
    parts = [_label(title, size, 1.5, full_width), _beside([_label(column, size, 1.2, width) for column in columns])]
    for prompt, cells in rows:
        pictures = [_resized(cell.picture, width, height) for cell in cells]
        captions = [_text(cell.caption, size, _FAINT, width) for cell in cells]
        air = Image.new("RGB", (full_width, round(size / 5)), _PAPER)
        parts.append(_below([_text(prompt, size, _INK, full_width), air, _beside(pictures), _beside(captions)]))
    return ImageOps.expand(_below(parts, size), _MARGIN, _PAPER)


def _label(label: Label, size: int, larger: float, width: int) -> Image.Image:
    fine = [_text(line, size, _FAINT, width) for line in label.lines]
    return _below([_text(label.title, size * larger, _INK, width), *fine])


def _text(text: str, size: float, colour: tuple[int, int, int], width: int) -> Image.Image:
    """A text in lines that fit into a width."""
    text, font = drawable(text, round(size))
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if font.getlength(longer) <= width:
            lines[-1:] = [longer]
        else:
            lines += _broken(word, font, width)
    height = round(size * 1.4)
    top = min(round(0.15 * height), height - round(font.getbbox("gjpqy")[3]))  # or their tails would be cut off
    picture = Image.new("RGB", (width, height * max(1, len(lines))), _PAPER)
    for number, line in enumerate(lines):
        ImageDraw.Draw(picture).text((0, number * height + top), line, colour, font)
    return picture


def _broken(word: str, font: Font, width: int) -> list[str]:
    """A word in pieces that fit into a width: broken behind a dot, else a slash and so on, else anywhere."""
    pieces = []
    while word:
        starts = [word[:end] for end in range(1, min(len(word), width) + 1)]  # no letter is thinner than a pixel
        end = max(1, bisect_right(starts, float(width), key=lambda start: float(font.getlength(start))))
        if end < len(word):
            marks = (word.rfind(mark, end // 2, end) + 1 for mark in "./-_")
            end = next(filter(None, marks), end)
        pieces.append(word[:end])
        word = word[end:]
    return pieces


def _beside(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures of one width in a row."""
    width = pictures[0].width + _GAP
    row = Image.new("RGB", (len(pictures) * width - _GAP, max(picture.height for picture in pictures)), _PAPER)
    for number, picture in enumerate(pictures):
        row.paste(picture, (number * width, 0))
    return row


def _below(pictures: Sequence[Image.Image], gap: int = 0) -> Image.Image:
    """Pictures of one width in a column."""
    height = sum(picture.height + gap for picture in pictures) - gap
    column = Image.new("RGB", (pictures[0].width, height), _PAPER)
    top = 0
    for picture in pictures:
        column.paste(picture, (0, top))
        top += picture.height + gap
    return column


def _cell_size(picture: Image.Image) -> tuple[int, int]:
    """Pictures keep their size, but tiny ones grow by whole numbers until labels fit, and huge ones shrink."""
    width, height = picture.size
    if width < _MIN_CELL:
        scale: float = -(-_MIN_CELL // width)
    else:
        scale = min(1.0, _MAX_CELL / max(width, height))
    return round(width * scale), round(height * scale)


def _resized(picture: Image.Image, width: int, height: int) -> Image.Image:
    how = Image.Resampling.NEAREST if width > picture.width else Image.Resampling.LANCZOS
    return picture.convert("RGB").resize((width, height), how)
