"""The plot of an evaluation: PSNR and FLIP against the speed-ups."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED
from ppdiffusers_tome.tools.evaluate.report import FLIP, PSNR, SPEED_UP, Report, Row, mark_frontier
from ppdiffusers_tome.tools.figures.plots import DPI, FAINT, INK, plot_style, render
from ppdiffusers_tome.tools.measure.stats import Median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT, _LEGEND_LINE = 960, 880, 22  # pixels
_NUM_COLORS, _MARKERS = 10, "os^DvP"  # of matplotlib's cycle; after it colors repeat with the next marker
_LEGEND_COLUMNS, _MAX_LEGEND_LINE, _MAX_NAME_LINE = 2, 60, 24  # lines in characters


def plot_report(report: Report) -> Image.Image:
    """Plot medians with intervals, a line for each family.

    Configurations whose images are identical to the unmerged ones are omitted, as their PSNR is infinite. In the panel
    of PSNR the frontier is ringed, named and joined by a dashed line.
    """
    from matplotlib.figure import Figure

    families: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.configuration.name != UNMERGED and math.isfinite(row.psnr):
            name = textwrap.fill(row.configuration.family, _MAX_LEGEND_LINE)
            families.setdefault(name, []).append(row)
    explanation = "ringed and joined: the frontier; bars: intervals of the medians"
    note = "; ".join([*report.notes[:2], explanation if families else "all images are identical to the unmerged ones"])
    num_lines = -(-sum(family.count("\n") + 1 for family in families) // _LEGEND_COLUMNS)
    with plot_style():
        figure = Figure((_WIDTH / DPI, (_HEIGHT + num_lines * _LEGEND_LINE) / DPI), DPI)
        figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.1)  # inches
        figure.suptitle("\n".join([report.title, *textwrap.wrap(note, _WIDTH // 8)]), x=0.01, ha="left", size=10)
        above, below = figure.subplots(2, sharex=True, height_ratios=(5, 3))
        for axes, measure in ((above, PSNR), (below, FLIP)):
            _draw_families(axes, families, measure)
        _draw_frontier(above, report.rows)
        above.set_ylabel("PSNR to the unmerged image (dB)")
        below.set(ylabel="FLIP (less is better)", xlabel="speed-up")
        below.invert_yaxis()  # upwards is better in both panels
        if families:
            figure.legend(*above.get_legend_handles_labels(), loc="outside lower left", ncols=_LEGEND_COLUMNS)
        return render(figure)


def _draw_families(axes: Axes, families: dict[str, list[Row]], measure: str) -> None:
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.margins(0.16, 0.12)  # room for names
    axes.axvline(1, color=FAINT, linewidth=1)
    for number, (family, rows) in enumerate(families.items()):
        xs, ys = ([row.medians[name] for row in rows] for name in (SPEED_UP, measure))
        marker = _MARKERS[number // _NUM_COLORS % len(_MARKERS)]
        axes.errorbar([x.median for x in xs], [y.median for y in ys], _compute_bars(ys), _compute_bars(xs),
                      color=f"C{number % _NUM_COLORS}", marker=marker, markersize=5, elinewidth=0.8, capsize=2,
                      label=family)  # fmt: skip


def _compute_bars(values: Sequence[Median]) -> list[list[float]]:
    """Return the lengths of error bars, below and above."""
    bars: list[list[float]] = [[], []]
    for value in values:
        ends = value.interval if value.interval and all(map(math.isfinite, value.interval)) else 2 * (value.median,)
        for lengths, end in zip(bars, ends, strict=True):
            lengths.append(abs(end - value.median))
    return bars


def _draw_frontier(axes: Axes, rows: Sequence[Row]) -> None:
    """Ring, join and name the frontier, above and below in turns."""
    marked = zip(rows, mark_frontier(rows), strict=True)
    points = sorted(
        (row.medians[SPEED_UP].median, row.psnr, row.configuration.name)
        for row, is_best in marked if is_best and row.configuration.name != UNMERGED and math.isfinite(row.psnr)
    )  # fmt: skip
    axes.plot([x for x, *_ in points], [y for _, y, _ in points], "o--", color=INK, markersize=10,
              markerfacecolor="none", linewidth=1)  # fmt: skip
    middle = sum(axes.get_xlim()) / 2
    for number, (x, y, name) in enumerate(points):
        is_above, is_left = number % 2 == 0, x < middle  # on the right a name would leave the panel
        axes.annotate(
            textwrap.fill(name, _MAX_NAME_LINE), (x, y), (8 if is_left else -8, 8 if is_above else -8),
            textcoords="offset points", size=8, ha="left" if is_left else "right", va="bottom" if is_above else "top",
        ).set_in_layout(False)  # fmt: skip
