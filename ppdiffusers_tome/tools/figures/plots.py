"""How all plots of this program look: matplotlib without pyplot, so nothing outside a plot changes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.tools.figures.fonts import chinese_family

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

INK, FAINT, RULE = "#1c1c1c", "#757575", "#e4e7ea"
BLUE, ORANGE, GREEN, PINK, PURPLE, TEAL, BROWN, GREY, RED, LIME, NAVY, ROSE = COLOURS = (
    "#3a78c9", "#c98a3a", "#5aa469", "#b0507a", "#7a63b8", "#2d9aa6", "#8a6d4b", "#6d7681", "#c9432e", "#a8b820",
    "#1f3c6b", "#e08ab4",
)  # fmt: skip
_MARKERS = "os^DvP"
_DPI = 100
_MARGIN, _TITLE, _LINE = 20, 34, 20  # pixels: of the edges, and the heights of the title and of a line under it
_LEGEND_LINE = 22  # pixels
_LEGEND_EMS = 5  # beside each name: its marker and the gap to the next column
# Of names beside points: the font's size; in pixels a point's half, how far away a name may be and the gap to the next
# one; in characters how wide a name is that has to be broken.
_NAME_SIZE, _POINT, _AWAY, _GAP, _BROKEN = 9, 6, (8, 20, 34, 50, 70), 6, 24
_DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 10, "text.color": INK, "text.parse_math": False,
    "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 10,
    "axes.edgecolor": RULE, "axes.labelcolor": INK, "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": RULE, "grid.linewidth": 0.8,
    "xtick.color": RULE, "ytick.color": RULE, "xtick.labelcolor": FAINT, "ytick.labelcolor": FAINT,
    "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False, "lines.linewidth": 1.6,
}  # fmt: skip


def draw_plot(title: str, note: str, draw: Callable[[Figure], None], *, width: int, height: int) -> Image.Image:
    """Draw a plot with its title.

    Args:
        title, note: what stands over it, the note in finer print and as many lines as it needs.
        draw: draws everything else into the figure, which keeps room for the title and lays its axes out by itself.
        width, height: in pixels, title included.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    family = [_STYLE["font.family"], *filter(None, [chinese_family()])]  # the second for what the first lacks
    with matplotlib.rc_context({**_STYLE, "font.family": family}):
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        canvas = FigureCanvasAgg(figure)
        lines = textwrap.wrap(note, width // 7)
        top = height - _MARGIN - _TITLE - _LINE * len(lines)
        edge = _MARGIN / width, _MARGIN / height / 2
        figure.set_layout_engine("constrained", rect=(edge[0], edge[1], 1 - 2 * edge[0], top / height - edge[1]))
        figure.text(edge[0], 1 - _MARGIN / height, title, size=15, weight="bold", va="top")
        for number, line in enumerate(lines):
            at = _MARGIN + _TITLE + number * _LINE
            figure.text(edge[0], 1 - at / height, line, size=9.5, color=FAINT, va="top")
        draw(figure)
        canvas.draw()
        return Image.fromarray(np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3]))


def line_style(number: int) -> dict[str, Any]:
    """Colour and marker of a line; the colours come round again with another marker."""
    turn, colour = divmod(number, len(COLOURS))
    return {"color": COLOURS[colour], "marker": _MARKERS[turn % len(_MARKERS)]}


def legend_size(names: Sequence[str], width: int, most: int = 4) -> tuple[int, int]:
    """How a legend under a plot fits into it.

    Args:
        names: what it explains.
        width: of the plot, in pixels.
        most: the most columns it may have.

    Returns:
        how many columns it has, at least one, and its height in pixels.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(dpi=_DPI)
        longest = max((figure.text(0, 0, name).get_window_extent().width for name in names), default=0)
    columns = int((width - 2 * _MARGIN) // (longest + _LEGEND_EMS * _STYLE["font.size"] * _DPI / 72))
    columns = max(1, min(columns, most))
    broken = sum(name.count("\n") for name in names)
    return columns, _LEGEND_LINE * (-(-len(names) // columns) + broken)


def name_points(axes: Axes, points: Sequence[tuple[float, float, Sequence[str]]]) -> None:
    """Write names beside points, each inside the axes and where it covers the fewest points and other names.

    Args:
        axes: laid out already, see ``Figure.draw_without_rendering``.
        points: x, y and the names of the point, of which the first is written that has room; where none has, the last
            is broken into lines. Where there is no name, nothing is written, but nothing over the point either.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    places = [axes.transData.transform((x, y)) for x, y, _ in points]
    taken = [Bbox.from_extents(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for x, y in places]
    for (x, y, names), (across, up) in zip(points, places, strict=True):
        if not names:
            continue
        for name in [*names, textwrap.fill(names[-1], _BROKEN)]:
            measured = axes.text(x, y, name, size=_NAME_SIZE)
            size = measured.get_window_extent()
            measured.remove()
            boxes = [
                Bbox.from_bounds(across + away * right + size.width * (right - 1) / 2,
                                 up + away * above + size.height * (above - 1) / 2, size.width, size.height)
                for away in _AWAY for right, above in _DIRECTIONS
            ]  # fmt: skip
            box = min(boxes, key=lambda box: _covered(box, taken, axes))  # the nearest of those that are as good
            if not _covered(box, taken, axes):
                break
        taken.append(box.padded(_GAP, 0))
        far = boxes.index(box) >= len(_DIRECTIONS)
        axes.annotate(
            name, (x, y), (box.x0 - across, box.y0 - up), textcoords="offset pixels", va="bottom", size=_NAME_SIZE,
            path_effects=[withStroke(linewidth=3, foreground="white")],
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.6} if far else None,
        ).set_in_layout(False)  # fmt: skip


def _covered(box: Bbox, taken: Sequence[Bbox], axes: Axes) -> int:
    """How many boxes another one covers; what leaves the axes is worse than any."""
    inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1
    return sum(box.overlaps(other) for other in taken) + (0 if inside else len(taken) + 1)
