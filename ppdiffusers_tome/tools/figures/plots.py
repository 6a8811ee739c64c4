"""The style of plots and sheets, for matplotlib without pyplot."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.tools.console.output import warn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, RULE = "#1c1c1c", "#757575", "#e4e7ea"
DPI = 100
_STYLE: dict[str, Any] = {
    "font.size": 10, "text.color": INK, "text.parse_math": False,
    "axes.edgecolor": RULE, "axes.labelcolor": INK, "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": RULE, "grid.linewidth": 0.8,
    "xtick.color": RULE, "ytick.color": RULE, "xtick.labelcolor": FAINT, "ytick.labelcolor": FAINT,
    "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False, "lines.linewidth": 1.6,
}  # fmt: skip
# Fonts with Chinese, Japanese and Korean, for the characters that the first one lacks.
_FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "PingFang SC",
    "Microsoft YaHei", "SimHei", "Droid Sans Fallback", "Arial Unicode MS",
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
