"""Similarity against speed-up: a line a family of configurations, the frontier marked."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from PIL import Image

from ppdiffusers_tome.settings.values import in_words
from ppdiffusers_tome.tools.evaluation.configurations import UNMERGED
from ppdiffusers_tome.tools.evaluation.summary import Row
from ppdiffusers_tome.tools.figures.plots import FAINT, INK, draw_plot, legend_size, line_style, name_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 1280, 560
_LONGEST = 130  # characters of a line of the legend
_PLACES = 10  # between two points


@dataclass(frozen=True)
class _Point:
    """A configuration on one panel; names are what it may be called there, the fullest first."""

    names: Sequence[str]
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
    columns, legend_height = legend_size(list(map(_label, families)), _WIDTH)
    blocks, whole = [], []
    for row, names in zip(shown, _names(shown), strict=True):
        family = row.configuration.family
        if row.block_speed_up is not None:
            blocks.append(_Point(names, family, row.block_speed_up.median, row.similarity, row.on_block_frontier))
        whole.append(_Point(names, family, row.speed_up.median, row.similarity, row.on_frontier))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_panel(left, "speed-up of the blocks that merge", blocks, families)
        _draw_panel(right, "speed-up of the whole picture", whole, families)
        left.set_ylabel("PSNR to the unmerged picture (dB)")
        if families:
            figure.legend(*right.get_legend_handles_labels(), loc="outside lower left", ncols=columns)
        figure.draw_without_rendering()  # names are placed where the layout has put the points
        for axes, points in ((left, blocks), (right, whole)):
            named = [(p.speed_up, p.psnr, p.names if p.on_frontier else ()) for p in points]
            name_points(axes, [*named, *((x, y, ()) for x, y in _along(_frontier(points)))])

    height = _HEIGHT + legend_height
    explained = f"{note}; ringed and joined: the frontier" if families else note
    return draw_plot(title, explained, draw, width=_WIDTH, height=height)


def _names(rows: Sequence[Row]) -> list[list[str]]:
    """What each may be called: its name; where that is too long its ratio, if its family has that once."""
    ratios = [
        (row.configuration.family, in_words(row.configuration.tome and row.configuration.tome.ratio)) for row in rows
    ]
    times = Counter(ratios)
    return [
        [row.configuration.name, *([ratio[1]] if times[ratio] == 1 else [])]
        for row, ratio in zip(rows, ratios, strict=True)
    ]


def _label(family: str) -> str:
    """As it stands in the legend, in lines."""
    return textwrap.fill(family, _LONGEST)


def _draw_panel(axes: Axes, x_name: str, points: Sequence[_Point], families: Sequence[str]) -> None:
    axes.set_xlabel(x_name)
    axes.xaxis.set_major_formatter("{x:g}x")
    if not families:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "all pictures are identical\nto the unmerged ones", transform=axes.transAxes, ha="center")
        return
    axes.axvline(1, color=FAINT, linewidth=1)
    for number, family in enumerate(families):
        own = [point for point in points if point.family == family]
        axes.plot(
            [p.speed_up for p in own], [p.psnr for p in own], **line_style(number), markersize=5, label=_label(family)
        )
    frontier = _frontier(points)
    axes.plot(
        [x for x, _ in frontier], [y for _, y in frontier], "o--", color=INK, markersize=10,
        markerfacecolor="none", linewidth=1,
    )  # fmt: skip
    axes.margins(0.14, 0.08)  # room for names


def _frontier(points: Sequence[_Point]) -> list[tuple[float, float]]:
    return sorted((point.speed_up, point.psnr) for point in points if point.on_frontier)


def _along(line: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Places on a line through points, for names to keep clear of."""
    for (x, y), (next_x, next_y) in pairwise(line):
        for part in range(1, _PLACES):
            yield x + (next_x - x) * part / _PLACES, y + (next_y - y) * part / _PLACES
