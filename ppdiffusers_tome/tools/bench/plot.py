"""Speed-ups, or peaks of memory, as bars: a panel a setting, a bar an entry. Drawn with Pillow, as all pictures."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from ppdiffusers_tome.tools.bench.contenders import FREE, NONE, OURS, OURS_FAST, OURS_TODO, PORT
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.bench.summary import OUT_OF_MEMORY, UNITS, Result, format_seconds
from ppdiffusers_tome.tools.measuring.units import NOT_MEASURED, format_bytes

_PAPER, _INK, _FAINT, _OTHER = "#ffffff", "#1c1c1c", "#8c8c8c", "#b8bec6"
_COLOURS = {
    NONE: "#6d7681", PORT: "#c98a3a", OURS: "#3a78c9", OURS_FAST: "#1f4f94", OURS_TODO: "#8a5fb0", FREE: "#5aa469",
}  # fmt: skip
_MARGIN, _LINE, _NAMES, _BARS, _VALUES = 24, 26, 150, 360, 220
_WIDTH = _NAMES + _BARS + _VALUES
_COLUMNS = 2


def plot(title: str, plan: Plan, found: Sequence[Result]) -> Image.Image:
    """Draw every setting's speed-ups over the model without merging, all to one scale; peaks where nothing was timed.

    Where that model itself did not fit there is no speed-up: bars are then left out and seconds stand alone.
    """
    show = _speed if plan.repeats else _peak
    panels = [[result for result in found if result.setting == setting] for setting in plan.settings]
    longest = max((length for length, _ in map(show, found) if length), default=1.0)
    columns = min(_COLUMNS, len(panels))
    height = _LINE * (len(plan.entries) + 2)
    rows = -(-len(panels) // columns)
    picture = Image.new("RGB", (2 * _MARGIN + columns * _WIDTH, 2 * _MARGIN + 3 * _LINE + rows * height), _PAPER)
    pen = ImageDraw.Draw(picture)
    pen.text((_MARGIN, _MARGIN), title, _INK, _font(22))
    shown = f"speed-up over '{NONE}', and {UNITS[plan.what]}" if plan.repeats else "peak memory"
    under = f"{plan.model} model, {plan.dtype}; {shown}"
    pen.text((_MARGIN, _MARGIN + 1.3 * _LINE), under, _FAINT, _font(15))
    for number, panel in enumerate(panels):
        left, top = _MARGIN + number % columns * _WIDTH, _MARGIN + 3 * _LINE + number // columns * height
        pen.text((left, top), panel[0].setting.name, _INK, _font(17))
        for line, result in enumerate(panel, start=1):
            length, text = show(result)
            _draw_bar(pen, left, top + line * _LINE + 4, result, (length or 0) * _BARS / longest, text)
    return picture


def _draw_bar(pen: ImageDraw.ImageDraw, left: int, top: int, result: Result, pixels: float, text: str) -> None:
    pen.text((left, top), result.entry.name, _INK, _font(15))
    x = left + _NAMES
    if pixels:
        pen.rectangle((x, top, x + pixels, top + _LINE - 8), fill=_COLOURS.get(result.entry.contender, _OTHER))
    pen.text((x + pixels + 8, top), text, _INK if pixels else _FAINT, _font(15))


def _speed(result: Result) -> tuple[float | None, str]:
    """How long the bar is, and what stands behind it."""
    if result.out_of_memory or result.seconds is None:
        return None, OUT_OF_MEMORY if result.out_of_memory else NOT_MEASURED
    seconds = format_seconds(result.seconds.median)
    if result.speed_up is None:
        return None, seconds
    return result.speed_up.median, f"{result.speed_up.median:.2f}x   {seconds}"


def _peak(result: Result) -> tuple[float | None, str]:
    """The same for memory: of the whole process on a CPU, otherwise of Paddle's tensors."""
    peak = result.peak_bytes if result.resident_peak_bytes is None else result.resident_peak_bytes
    return peak, OUT_OF_MEMORY if result.peak_out_of_memory else format_bytes(peak)


def _font(size: float) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size=size)  # type: ignore[return-value]
