"""Lines over two logarithmic axes. Drawn with Pillow, as all pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

_PAPER, _INK, _FAINT, _RULE = "#ffffff", "#1c1c1c", "#8c8c8c", "#e4e7ea"
_COLOURS = ("#3a78c9", "#1f4f94", "#c98a3a", "#5aa469")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 900, 560, 90, 80, 40, 110
Points = Sequence[tuple[float, float]]


def plot_lines(
    title: str, x_name: str, y_name: str, lines: Mapping[str, Points], x_labels: Mapping[float, str]
) -> Image.Image:
    """Draw lines of points, both coordinates above 0.

    Args:
        title, x_name, y_name: what is shown, with units.
        lines: points from left to right by name.
        x_labels: what to write under which x.
    """
    picture = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    pen, small = ImageDraw.Draw(picture), ImageFont.load_default(14)
    points = [point for line in lines.values() for point in line]
    x_range = [math.log10(value) for value in (min(x_labels), max(x_labels))]
    low = math.floor(math.log10(min(y for _, y in points)))
    high = max(low + 1, math.ceil(math.log10(max(y for _, y in points))))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_range[0]) / ((x_range[1] - x_range[0]) or 1)
        up = (math.log10(y) - low) / (high - low)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    pen.text((24, 20), title, _INK, ImageFont.load_default(20))
    pen.text((24, 48), y_name, _FAINT, small)
    for power in range(low, high + 1):
        _, y = place(min(x_labels), 10.0**power)
        pen.line((_LEFT, y, _WIDTH - _RIGHT, y), _RULE)
        pen.text((_LEFT - 12, y), f"{10.0**power:g}", _FAINT, small, anchor="rm")
    for x, label in x_labels.items():
        pen.text((place(x, 1.0)[0], _HEIGHT - _BOTTOM + 10), label, _FAINT, small, anchor="ma")
    pen.text((_WIDTH / 2, _HEIGHT - _BOTTOM + 34), x_name, _FAINT, small, anchor="ma")
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [place(*point) for point in line]
        pen.line(places, colour, 3)
        for x, y in places:
            pen.ellipse((x - 5, y - 5, x + 5, y + 5), colour)
        left, top = 24 + number * 290, _HEIGHT - 36
        pen.rectangle((left, top + 4, left + 22, top + 10), colour)
        pen.text((left + 30, top - 2), name, _INK, ImageFont.load_default(15))
    return picture
