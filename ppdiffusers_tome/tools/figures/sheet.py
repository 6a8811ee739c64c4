"""A labelled sheet of pictures: rows of prompts, columns of settings. Knows Pillow alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

_MIN_CELL, _MAX_CELL, _GAP, _MARGIN = 256, 512, 16, 28
_PAPER, _INK, _FAINT = (255, 255, 255), (24, 24, 27), (113, 113, 122)


@dataclass(frozen=True)
class Label:
    """A bold word or two and, under it, finer print."""

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
    line = round(size * 1.4)
    full_width = 2 * _MARGIN + len(columns) * (width + _GAP) - _GAP
    head = [*_wrapped(title.title, size * 1.5, full_width - 2 * _MARGIN)]
    fine = [part for text in title.lines for part in _wrapped(text, size, full_width - 2 * _MARGIN)]
    column_lines = 1 + max(len(column.lines) for column in columns)
    prompts = [_wrapped(prompt, size, full_width - 2 * _MARGIN) for prompt, _ in rows]
    head_height = round(1.5 * line) * len(head) + line * len(fine)
    rows_height = sum(line * len(prompt) + height + 2 * line for prompt in prompts)
    full_height = 2 * _MARGIN + head_height + line + round(line * (column_lines + 0.5)) + rows_height - line // 2
    sheet = Image.new("RGB", (full_width, full_height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    y = _MARGIN
    for text in head:
        pen.text((_MARGIN, y), text, _INK, _font(size * 1.5))
        y += round(1.5 * line)
    for text in fine:
        pen.text((_MARGIN, y), text, _FAINT, _font(size))
        y += line
    y += line
    for index, column in enumerate(columns):
        x = _MARGIN + index * (width + _GAP)
        pen.text((x, y), column.title, _INK, _font(size * 1.2))
        for number, text in enumerate(column.lines, start=1):
            pen.text((x, y + round(line * (number + 0.15))), text, _FAINT, _font(size))
    y += round(line * (column_lines + 0.5))
    for prompt, (_, cells) in zip(prompts, rows, strict=True):
        for text in prompt:
            pen.text((_MARGIN, y), text, _INK, _font(size))
            y += line
        for index, cell in enumerate(cells):
            x = _MARGIN + index * (width + _GAP)
            sheet.paste(cell.picture.convert("RGB").resize((width, height), _resampling(cell.picture, width)), (x, y))
            pen.text((x, y + height + line // 6), cell.caption, _FAINT, _font(size))
        y += height + 2 * line
    return sheet


def _cell_size(picture: Image.Image) -> tuple[int, int]:
    """Pictures keep their size, but tiny ones grow by whole numbers until labels fit, and huge ones shrink."""
    width, height = picture.size
    if width < _MIN_CELL:
        scale: float = -(-_MIN_CELL // width)
    else:
        scale = min(1.0, _MAX_CELL / max(width, height))
    return round(width * scale), round(height * scale)


def _resampling(picture: Image.Image, width: int) -> Image.Resampling:
    return Image.Resampling.NEAREST if width > picture.width else Image.Resampling.LANCZOS


def _font(size: float) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size=round(size))  # type: ignore[return-value]


def _wrapped(text: str, size: float, width: int) -> list[str]:
    """A text in lines that fit."""
    font, lines = _font(size), [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
