"""Similarity against speed-up: one line per family of configurations, intervals as bars, the frontier marked."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from PIL import Image

from ppdiffusers_tome.settings.types import format_setting
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED
from ppdiffusers_tome.tools.evaluate.intervals import Median
from ppdiffusers_tome.tools.evaluate.summary import Row
from ppdiffusers_tome.tools.figures.plots import FAINT, INK, draw_plot, legend_size, line_style, name_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 1280, 880
_SHARES = (5, 3)  # of the height: the panels of PSNR, and those of FLIP
_LONGEST = 130  # characters of a line of the legend
_PLACES = 10  # between two points


@dataclass(frozen=True)
class _Point:
    """A configuration on one panel; names are what it may be called there, the fullest first."""

    names: Sequence[str]
    family: str
    speed_up: Median
    psnr: Median
    flip: Median
    on_frontier: bool


def plot(title: str, note: str, rows: Sequence[Row]) -> Image.Image:
    """Four panels: PSNR and FLIP against the speed-up of the blocks and of the whole picture, all medians.

    Lines go through their family in the order of the rows, with bars for the intervals of medians. Configurations whose
    pictures are identical with the unmerged ones have no place on the axis and are left out. In the panels of PSNR what
    is on the frontier is ringed, named and joined by a dashed line.
    """
    shown = [row for row in rows if row.configuration.contender != UNMERGED and math.isfinite(row.similarity)]
    families = list(dict.fromkeys(row.configuration.family for row in shown))
    columns, legend_height = legend_size(list(map(_label, families)), _WIDTH)
    blocks, whole = [], []
    for row, names in zip(shown, _names(shown), strict=True):
        family = row.configuration.family
        assert row.psnr is not None
        assert row.flip is not None
        if row.block_speed_up is not None:
            blocks.append(_Point(names, family, row.block_speed_up, row.psnr, row.flip, row.on_block_frontier))
        whole.append(_Point(names, family, row.speed_up, row.psnr, row.flip, row.on_frontier))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=_SHARES)
        left, right = panels[0]
        for above, below, points in ((left, panels[1][0], blocks), (right, panels[1][1], whole)):
            _draw_panel(above, points, families, lambda point: point.psnr)
            _draw_frontier(above, points)
            _draw_panel(below, points, families, lambda point: point.flip)
        left.set_ylabel("PSNR to the unmerged picture (dB)")
        panels[1][0].set(ylabel="FLIP (less is better)", xlabel="speed-up of the blocks that merge")
        panels[1][1].set_xlabel("speed-up of the whole picture")
        if families:
            panels[1][0].invert_yaxis()  # upwards is better in all panels
            figure.legend(*right.get_legend_handles_labels(), loc="outside lower left", ncols=columns)
        figure.draw_without_rendering()  # names are placed where the layout has put the points
        for axes, points in ((left, blocks), (right, whole)):
            named = [(p.speed_up.median, p.psnr.median, p.names if p.on_frontier else ()) for p in points]
            name_points(axes, [*named, *((x, y, ()) for x, y in _along(_frontier(points)))])

    height = _HEIGHT + legend_height
    explained = f"{note}; ringed and joined: the frontier" if families else note
    if any(point.psnr.interval for point in whole):
        explained += "; bars: intervals of the medians"
    return draw_plot(title, explained, draw, width=_WIDTH, height=height)


def _names(rows: Sequence[Row]) -> list[list[str]]:
    """What each may be called: its name; where that is too long its ratio, if its family has that once."""
    ratios = [
        (row.configuration.family, format_setting(row.configuration.tome and row.configuration.tome.ratio))
        for row in rows
    ]
    times = Counter(ratios)
    return [
        [row.configuration.name, *([ratio[1]] if times[ratio] == 1 else [])]
        for row, ratio in zip(rows, ratios, strict=True)
    ]


def _label(family: str) -> str:
    """As it stands in the legend, in lines."""
    return textwrap.fill(family, _LONGEST)


def _draw_panel(
    axes: Axes, points: Sequence[_Point], families: Sequence[str], similarity: Callable[[_Point], Median]
) -> None:
    axes.xaxis.set_major_formatter("{x:g}x")
    if not families:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "all pictures are identical\nto the unmerged ones", transform=axes.transAxes, ha="center")
        return
    axes.axvline(1, color=FAINT, linewidth=1)
    for number, family in enumerate(families):
        across = [point.speed_up for point in points if point.family == family]
        up = [similarity(point) for point in points if point.family == family]
        style = line_style(number)
        axes.plot([x.median for x in across], [y.median for y in up], **style, markersize=5, label=_label(family))
        for x, y in zip(across, up, strict=True):
            axes.errorbar(
                x.median, y.median, _reach(y), _reach(x), color=style["color"], elinewidth=0.8, capsize=2, alpha=0.6
            )
    axes.margins(0.14, 0.08)  # room for names


def _reach(value: Median) -> list[list[float]] | None:
    """How far its interval reaches down and up, as ``errorbar`` takes it; not where it is infinite."""
    if value.interval is None or not math.isfinite(value.interval[1]):
        return None
    return [[value.median - value.interval[0]], [value.interval[1] - value.median]]


def _draw_frontier(axes: Axes, points: Sequence[_Point]) -> None:
    frontier = _frontier(points)
    axes.plot(
        [x for x, _ in frontier], [y for _, y in frontier], "o--", color=INK, markersize=10,
        markerfacecolor="none", linewidth=1,
    )  # fmt: skip


def _frontier(points: Sequence[_Point]) -> list[tuple[float, float]]:
    return sorted((point.speed_up.median, point.psnr.median) for point in points if point.on_frontier)


def _along(line: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Places on a line through points, for names to keep clear of."""
    for (x, y), (next_x, next_y) in pairwise(line):
        for part in range(1, _PLACES):
            yield x + (next_x - x) * part / _PLACES, y + (next_y - y) * part / _PLACES
