"""The plot of an evaluation: PSNR and FLIP against the speed-ups."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED
from ppdiffusers_tome.tools.evaluate.summary import BLOCK_SPEED_UP, FLIP, PSNR, SPEED_UP, Row
from ppdiffusers_tome.tools.figures.plots import DPI, FAINT, INK, plot_style, render
from ppdiffusers_tome.tools.measure.stats import Median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 1280, 880
_COLORS = (
    "#3a78c9", "#c98a3a", "#5aa469", "#b0507a", "#7a63b8", "#2d9aa6", "#8a6d4b", "#6d7681", "#c9432e", "#a8b820",
    "#1f3c6b", "#e08ab4",
)  # fmt: skip
_MARKERS = "os^DvP"
_HEIGHT_RATIOS = (5, 3)  # of the panels of PSNR and of FLIP
_LEGEND_LINE = 22  # pixels
_LEGEND_COLUMNS, _MAX_LEGEND_LINE, _MAX_NAME_LINE = 2, 60, 24  # lines in characters


def plot_rows(title: str, note: str, rows: Sequence[Row]) -> Image.Image:
    """Plot medians with intervals, a line for each family.

    Configurations whose images are identical to the unmerged ones are omitted, as their PSNR is infinite. In the panels
    of PSNR the frontier is ringed, named and joined by a dashed line.
    """
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.configuration.name != UNMERGED and math.isfinite(row.psnr)]
    families = list(dict.fromkeys(row.configuration.family for row in shown))
    num_lines = -(-sum(_format_family(family).count("\n") + 1 for family in families) // _LEGEND_COLUMNS)
    note += "; ringed and joined: the frontier" if families else ""
    note += "; bars: intervals of the medians" if any(row.medians[PSNR].interval for row in shown) else ""
    size = _WIDTH / DPI, (_HEIGHT + num_lines * _LEGEND_LINE) / DPI
    with plot_style():
        figure = Figure(size, DPI)
        figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.1)  # inches
        figure.suptitle("\n".join([title, *textwrap.wrap(note, _WIDTH // 8)]), x=0.01, ha="left", size=10)
        panels = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=_HEIGHT_RATIOS)
        for column, speed_up in enumerate((BLOCK_SPEED_UP, SPEED_UP)):
            for axes, measure in zip(panels[:, column], (PSNR, FLIP), strict=True):
                _draw_panel(axes, shown, families, speed_up, measure)
            _draw_frontier(panels[0][column], shown, speed_up)
        panels[0][0].set_ylabel("PSNR to the unmerged image (dB)")
        panels[1][0].set(ylabel="FLIP (less is better)", xlabel="speed-up of the blocks that merge")
        panels[1][1].set_xlabel("speed-up of the whole image")
        if families:
            panels[1][0].invert_yaxis()  # upwards is better in all panels
            handles = panels[0][1].get_legend_handles_labels()
            figure.legend(*handles, loc="outside lower left", ncols=_LEGEND_COLUMNS)
        return render(figure)


def _format_family(family: str) -> str:
    return textwrap.fill(family, _MAX_LEGEND_LINE)


def _draw_panel(axes: Axes, rows: Sequence[Row], families: Sequence[str], speed_up: str, measure: str) -> None:
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.margins(0.16, 0.12)  # room for names
    if not families:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "all images are identical\nto the unmerged ones", transform=axes.transAxes, ha="center")
        return
    axes.axvline(1, color=FAINT, linewidth=1)
    for number, family in enumerate(families):
        of_family = [row for row in rows if row.configuration.family == family and speed_up in row.medians]
        turn, color = divmod(number, len(_COLORS))
        style: dict[str, Any] = {"color": _COLORS[color], "marker": _MARKERS[turn % len(_MARKERS)]}
        xs, ys = ([row.medians[name] for row in of_family] for name in (speed_up, measure))
        axes.plot([x.median for x in xs], [y.median for y in ys], **style, markersize=5, label=_format_family(family))
        for x, y in zip(xs, ys, strict=True):
            axes.errorbar(x.median, y.median, _compute_bar(y), _compute_bar(x), color=style["color"], elinewidth=0.8,
                          capsize=2, alpha=0.6)  # fmt: skip


def _compute_bar(value: Median) -> list[list[float]] | None:
    """Return the lengths of an error bar; None without a finite interval."""
    if value.interval is None or not all(map(math.isfinite, value.interval)):
        return None
    return [[value.median - value.interval[0]], [value.interval[1] - value.median]]


def _draw_frontier(axes: Axes, rows: Sequence[Row], speed_up: str) -> None:
    """Ring, join and name the frontier, above and below in turns."""
    best = [row for row in rows if (row.on_block_frontier if speed_up == BLOCK_SPEED_UP else row.on_frontier)]
    best.sort(key=lambda row: row.medians[speed_up].median)
    points = [(row.medians[speed_up].median, row.psnr) for row in best]
    axes.plot([x for x, _ in points], [y for _, y in points], "o--", color=INK, markersize=10, markerfacecolor="none",
              linewidth=1)  # fmt: skip
    for number, (row, point) in enumerate(zip(best, points, strict=True)):
        is_above = number % 2 == 0
        axes.annotate(
            textwrap.fill(row.configuration.name, _MAX_NAME_LINE), point, (8, 8) if is_above else (-8, -8),
            textcoords="offset points", size=8, ha="left" if is_above else "right", va="bottom" if is_above else "top",
        ).set_in_layout(False)  # fmt: skip
