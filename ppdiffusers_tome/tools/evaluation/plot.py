"""Similarity against speed-up: a line a family of configurations, the frontier marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from ppdiffusers_tome.tools.evaluation.configurations import UNMERGED
from ppdiffusers_tome.tools.evaluation.summary import Row
from ppdiffusers_tome.tools.figures.plots import COLOURS, FAINT, INK, draw_plot, name_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _LEGEND_LINE, _LEGEND_COLUMNS = 1280, 560, 22, 4


@dataclass(frozen=True)
class _Point:
    """A configuration on one panel."""

    name: str
    family: str
    speed_up: float
    psnr: float
    on_frontier: bool


def plot(title: str, note: str, rows: Sequence[Row]) -> Image.Image:
    """Two panels, PSNR against the speed-up of the blocks and of the whole picture.

    Lines go through their family in the order of the rows. Configurations whose pictures are identical with the
    unmerged ones have no place on the axis and are left out. What is on the frontier is ringed, named and joined by a
    dashed line.
    """
    shown = [row for row in rows if row.configuration.contender != UNMERGED and math.isfinite(row.similarity)]
    families = list(dict.fromkeys(row.configuration.family for row in shown))
    colours = {family: COLOURS[number % len(COLOURS)] for number, family in enumerate(families)}
    blocks, whole = [], []
    for row in shown:
        name, family = row.configuration.name, row.configuration.family
        if row.block_speed_up is not None:
            blocks.append(_Point(name, family, row.block_speed_up.median, row.similarity, row.on_block_frontier))
        whole.append(_Point(name, family, row.speed_up.median, row.similarity, row.on_frontier))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_panel(left, "speed-up of the blocks that merge", blocks, colours)
        _draw_panel(right, "speed-up of the whole picture", whole, colours)
        left.set_ylabel("PSNR to the unmerged picture (dB)")
        if families:
            lines = right.get_legend_handles_labels()
            figure.legend(*lines, loc="outside lower left", ncols=_LEGEND_COLUMNS)
        figure.draw_without_rendering()  # names are placed where the layout has put the points
        for axes, points in ((left, blocks), (right, whole)):
            name_points(axes, [(p.speed_up, p.psnr, p.name if p.on_frontier else "") for p in points])

    height = _HEIGHT + _LEGEND_LINE * math.ceil(len(families) / _LEGEND_COLUMNS)
    return draw_plot(title, f"{note}; ringed and joined: the frontier", draw, width=_WIDTH, height=height)


def _draw_panel(axes: Axes, x_name: str, points: Sequence[_Point], colours: dict[str, str]) -> None:
    axes.set_xlabel(x_name)
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1, color=FAINT, linewidth=1)
    for family, colour in colours.items():
        own = [point for point in points if point.family == family]
        axes.plot([p.speed_up for p in own], [p.psnr for p in own], "o-", color=colour, markersize=5, label=family)
    frontier = sorted((point for point in points if point.on_frontier), key=lambda point: point.speed_up)
    axes.plot(
        [p.speed_up for p in frontier], [p.psnr for p in frontier], "o--", color=INK, markersize=10,
        markerfacecolor="none", linewidth=1,
    )  # fmt: skip
    axes.margins(0.14, 0.08)  # room for names
