"""Fidelity against speed: a line a family, the frontier marked. Drawn with Pillow, as all pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont

from ppdiffusers_tome.tools.evaluation.configurations import UNMERGED
from ppdiffusers_tome.tools.evaluation.summary import Row

_PAPER, _INK, _FAINT, _RULE, _FRONTIER = "#ffffff", "#1c1c1c", "#8c8c8c", "#e4e7ea", "#1c1c1c"
_COLOURS = (
    "#3a78c9", "#c98a3a", "#5aa469", "#b0507a", "#7a63b8", "#2d9aa6", "#8a6d4b", "#6d7681", "#c9432e", "#a8b820",
    "#1f3c6b", "#e08ab4",
)  # fmt: skip
_PANEL, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 460, 70, 90, 30, 70
_KEY, _KEYS_A_ROW = 24, 3
_TICKS = 6


@dataclass(frozen=True)
class _Point:
    """A configuration on one panel."""

    name: str
    family: str
    x: float
    y: float
    on_frontier: bool


@dataclass(frozen=True)
class _Axis:
    """From a value to a place, with round numbers to write beside it."""

    low: float
    high: float
    step: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Axis:
        """An axis that holds some values, with room on both sides."""
        span = (max(values) - min(values)) or abs(max(values)) or 1.0
        rough = span / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        return cls(step * math.floor(min(values) / step - 0.2), step * math.ceil(max(values) / step + 0.2), step)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        return [self.low + number * self.step for number in range(round((self.high - self.low) / self.step) + 1)]


def plot(title: str, under: str, rows: Sequence[Row]) -> Image.Image:
    """Two panels, PSNR against the speed-up of the blocks and of the whole picture.

    Lines go through their family in the order of the rows. Configurations whose pictures are identical with the
    unmerged ones have no place on the axis and are left out. What is on the frontier is ringed, named and joined by a
    dashed line.
    """
    shown = [row for row in rows if row.configuration.contender != UNMERGED and math.isfinite(row.likeness)]
    families = list(dict.fromkeys(row.configuration.family for row in shown))
    colours = {family: _COLOURS[number % len(_COLOURS)] for number, family in enumerate(families)}
    height = _HEIGHT + _KEY * -(-len(families) // _KEYS_A_ROW)
    picture = Image.new("RGB", (2 * _PANEL, height), _PAPER)
    pen = ImageDraw.Draw(picture)
    pen.text((24, 16), title, _INK, _font(20))
    pen.text((24, 44), f"{under}; ringed and joined: the frontier", _FAINT, _font(14))
    panels: list[tuple[str, Callable[[Row], float], Callable[[Row], bool]]] = [
        ("speed-up of the blocks that merge", lambda row: row.block_speed_up.median, lambda row: row.on_block_frontier),
        ("speed-up of the whole picture", lambda row: row.speed_up.median, lambda row: row.on_frontier),
    ]
    for number, (name, speed_up, on_frontier) in enumerate(panels):
        points = [
            _Point(row.configuration.name, row.configuration.family, speed_up(row), row.likeness, on_frontier(row))
            for row in shown
        ]
        if points:
            _draw_panel(pen, number * _PANEL, name, points, colours)
    for number, family in enumerate(families):
        left = 24 + number % _KEYS_A_ROW * (2 * _PANEL - 48) // _KEYS_A_ROW
        top = _HEIGHT - 8 + number // _KEYS_A_ROW * _KEY
        pen.rectangle((left, top + 6, left + 22, top + 12), colours[family])
        pen.text((left + 30, top), family, _INK, _font(15))
    return picture


def _draw_panel(
    pen: ImageDraw.ImageDraw, left: int, x_name: str, points: Sequence[_Point], colours: dict[str, str]
) -> None:
    x_axis, y_axis = _Axis.of([*(point.x for point in points), 1.0]), _Axis.of([point.y for point in points])
    right, top, bottom = left + _PANEL - _RIGHT, _TOP, _HEIGHT - _BOTTOM

    def place(point: _Point) -> tuple[float, float]:
        across = x_axis.share(point.x) * (right - left - _LEFT)
        return left + _LEFT + across, bottom - y_axis.share(point.y) * (bottom - top)

    for value in y_axis.ticks:
        y = bottom - y_axis.share(value) * (bottom - top)
        pen.line((left + _LEFT, y, right, y), _RULE)
        pen.text((left + _LEFT - 10, y), f"{value:.4g}", _FAINT, _font(13), anchor="rm")
    for value in x_axis.ticks:
        x = left + _LEFT + x_axis.share(value) * (right - left - _LEFT)
        pen.line((x, top, x, bottom), _INK if abs(value - 1) < 1e-9 else _RULE)
        pen.text((x, bottom + 8), f"{value:.4g}x", _FAINT, _font(13), anchor="ma")
    pen.text((left + _LEFT, top - 20), "PSNR (dB)", _FAINT, _font(14))
    pen.text(((left + _LEFT + right) / 2, bottom + 28), x_name, _INK, _font(15), anchor="ma")
    for family, colour in colours.items():
        line = [point for point in points if point.family == family]
        pen.line([place(point) for point in line], colour, 2)
        for point in line:
            x, y = place(point)
            pen.ellipse((x - 4, y - 4, x + 4, y + 4), colour)
    frontier = sorted((point for point in points if point.on_frontier), key=lambda point: point.x)
    for start, end in pairwise(frontier):
        _dash(pen, place(start), place(end))
    for point in frontier:
        x, y = place(point)
        pen.ellipse((x - 7, y - 7, x + 7, y + 7), outline=_FRONTIER, width=2)
    _name(pen, frontier, place, right)


def _name(
    pen: ImageDraw.ImageDraw, frontier: Sequence[_Point], place: Callable[[_Point], tuple[float, float]], right: int
) -> None:
    """Write names beside points: above and to the right, or to the left at the edge; none over another."""
    font = _font(12)
    taken: list[tuple[float, float, float, float]] = []
    for point in frontier:
        x, y = place(point)
        width = pen.textlength(point.name, font)
        box_left = x + 9 if x + 9 + width <= right else x - 9 - width
        for top in (y - 18, y + 5, y - 32, y + 19):
            box = (box_left, top, box_left + width, top + 13)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                taken.append(box)
                pen.text(box[:2], point.name, _INK, font)
                break


def _dash(pen: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float]) -> None:
    length = math.dist(start, end)
    for begin in range(0, int(length), 10):
        shares = [min(at, length) / length for at in (begin, begin + 5)]
        pen.line([tuple(a + share * (b - a) for a, b in zip(start, end, strict=True)) for share in shares], _FRONTIER)


def _font(size: float) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size=size)  # type: ignore[return-value]
