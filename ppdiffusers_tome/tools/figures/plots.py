"""The style of plots and sheets, for matplotlib without pyplot."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.tools.console.output import warn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, RULE = "#1c1c1c", "#757575", "#e4e7ea"
BLUE, ORANGE, GREEN, PINK, PURPLE, TEAL, BROWN, GREY, RED, LIME, NAVY, ROSE = COLOURS = (
    "#3a78c9", "#c98a3a", "#5aa469", "#b0507a", "#7a63b8", "#2d9aa6", "#8a6d4b", "#6d7681", "#c9432e", "#a8b820",
    "#1f3c6b", "#e08ab4",
)  # fmt: skip
DPI = 100
_MARKERS = "os^DvP"
_MARGIN, _TITLE, _LINE = 20, 34, 20  # pixels: of the edges, and the heights of the title and of a line under it
_STYLE: dict[str, Any] = {
    "font.size": 10, "text.color": INK, "text.parse_math": False,
    "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 10,
    "axes.edgecolor": RULE, "axes.labelcolor": INK, "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": RULE, "grid.linewidth": 0.8,
    "xtick.color": RULE, "ytick.color": RULE, "xtick.labelcolor": FAINT, "ytick.labelcolor": FAINT,
    "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False, "lines.linewidth": 1.6,
}  # fmt: skip
# Fonts with Chinese, Japanese and Korean, for the characters that the first one lacks.
_FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "SimHei", "Droid Sans Fallback",
    "Arial Unicode MS",
)  # fmt: skip


@contextmanager
def plot_style() -> Iterator[None]:
    """Apply the style; characters that no font has are one warning."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    families = [font for font in _FONTS if font in installed]
    with warnings.catch_warnings(record=True) as caught, matplotlib.rc_context({**_STYLE, "font.family": families}):
        warnings.simplefilter("always")
        yield
    if any("missing from" in str(warning.message) for warning in caught):
        warn(
            "no font of this system has all characters of the labels, so some are boxes; install one that has, such as "
            "fonts-noto-cjk on Debian and Ubuntu, google-noto-sans-cjk-fonts on Fedora"
        )


def render(figure: Figure) -> Image.Image:
    """Render a figure to an image in RGB."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3]))


def draw_plot(title: str, note: str, draw: Callable[[Figure], None], *, width: int, height: int) -> Image.Image:
    """Draw a plot with its title.

    Args:
        title, note: above the plot, the note in finer print and as many lines as it needs.
        draw: draws everything else into the figure, which reserves room for the title and lays out its axes.
        width, height: in pixels, title included.
    """
    from matplotlib.figure import Figure

    with plot_style():
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        lines = textwrap.wrap(note, width // 7)
        top = height - _MARGIN - _TITLE - _LINE * len(lines)
        edge = _MARGIN / width, _MARGIN / height / 2
        figure.set_layout_engine("constrained", rect=(edge[0], edge[1], 1 - 2 * edge[0], top / height - edge[1]))
        figure.text(edge[0], 1 - _MARGIN / height, title, size=15, weight="bold", va="top")
        for number, line in enumerate(lines):
            y = _MARGIN + _TITLE + number * _LINE
            figure.text(edge[0], 1 - y / height, line, size=9.5, color=FAINT, va="top")
        draw(figure)
        return render(figure)


def line_style(number: int) -> dict[str, Any]:
    """Return color and marker of a line; colors repeat with another marker."""
    turn, color = divmod(number, len(COLOURS))
    return {"color": COLOURS[color], "marker": _MARKERS[turn % len(_MARKERS)]}


def measure_width(text: str, points: float) -> float:
    """Measure a text in pixels."""
    from matplotlib.figure import Figure

    with plot_style():
        return float(Figure(dpi=DPI).text(0, 0, text, size=points).get_window_extent().width)
