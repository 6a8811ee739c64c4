"""Plots: their size and title, that names keep clear of each other and fit, and that matplotlib is left as it was."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.evaluate.configurations import Configuration, ours, unmerged
from ppdiffusers_tome.tools.evaluate.plot import plot
from ppdiffusers_tome.tools.evaluate.samples import Case, Sample
from ppdiffusers_tome.tools.evaluate.summary import rows
from ppdiffusers_tome.tools.figures.plots import BLUE, draw_plot, name_points
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.measure.similarity import Similarity

pytestmark = pytest.mark.once

# Five families with long names of their own, and one with a short one.
LONG: tuple[dict[str, Any], ...] = (
    {"tile": 16, "reuse_steps": 4, "reuse_blocks": True, "max_downsample": 2},
    {"tile": 16, "reuse_steps": 4, "reuse_blocks": True, "merge_mlp": True, "method": "tofu"},
    {"tile": 16, "sx": 3, "sy": 3, "reuse_steps": 4, "merge_crossattn": True},
    {"method": "todo", "max_downsample": 4, "sx": 4, "sy": 4, "start": 0.1, "end": 0.9},
    {"tile": 8, "reuse_steps": 4, "reuse_blocks": True, "merge_mlp": True, "method": "prune"},
    {},
)


def of_families(*families: dict[str, Any]) -> list[Configuration]:
    return [ours(ToMeConfig(ratio, **family)) for family in families for ratio in (0.3, 0.5, 0.7)]


@pytest.fixture
def figure_of(monkeypatch):
    """The figure behind the plot of an evaluation in which each configuration is faster and less similar."""
    figures: list[Figure] = []
    prepare = FigureCanvasAgg.__init__

    def noted(self, figure=None):
        figures.append(figure)
        prepare(self, figure)

    def draw(configurations, *, psnr: float = 50.0, pictures: int = 1):
        every = [unmerged(), *configurations]
        samples = {
            each.name: [
                Sample(each.name, Case("p", seed), 1, GeneratedImage(
                    None, (10 + seed * number / 100) / (1 + number / 10), 1, 1,
                    Similarity(psnr - number + seed, 0.9, (number + seed) / 100) if number else None,
                    {1: (5 + seed * number / 100) / (1 + number / 10) ** 2},
                ))
                for seed in range(pictures)
            ]
            for number, each in enumerate(every)
        }  # fmt: skip
        plot("Title", "a note", rows(every, samples, samples["unmerged"], [1]))
        return figures[-1]

    monkeypatch.setattr(FigureCanvasAgg, "__init__", noted)
    return draw


def test_plot_has_its_size_and_a_title_above_what_is_drawn() -> None:
    def draw(figure: Any) -> None:
        figure.subplots().plot([1, 2], [3, 4], color=BLUE, linewidth=5)

    plots = [np.asarray(draw_plot("Title", note, draw, width=400, height=300)) for note in ("", "a long note " * 20)]
    blue = tuple(bytes.fromhex(BLUE[1:]))
    tops = [int(np.flatnonzero((plot == blue).all(-1).any(1))[0]) for plot in plots]
    assert [plot.shape for plot in plots] == [(300, 400, 3)] * 2
    assert 50 < tops[0] < tops[1]  # each line of the note takes room


def test_names_of_near_points_keep_clear_of_each_other() -> None:
    points = [(1 + number / 50, 1 - number / 90, f"configuration {number}") for number in range(6)]
    names: list[Any] = []

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o")
        axes.set(xlim=(0, 2), ylim=(0, 2))
        figure.draw_without_rendering()
        name_points(axes, [*((x, y, [name]) for x, y, name in points), (1.5, 0.5, [])])
        names.extend(axes.texts)

    draw_plot("Title", "", draw, width=640, height=480)
    assert [text.get_text() for text in names] == [name for _, _, name in points]
    boxes = [Text.get_window_extent(text) for text in names]  # without the lines to their points
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_long_names_fit_and_take_no_room_from_the_panels(figure_of):
    short, long = figure_of(of_families({}, {"tile": 16})), figure_of(of_families(*LONG))
    width = min(axes.bbox.width for axes in short.axes[:2])
    for axes in long.axes[:2]:  # those of PSNR
        assert axes.bbox.width == pytest.approx(width, rel=0.02)
        assert len(axes.texts) == 3 * len(LONG)
        boxes = [Text.get_window_extent(text) for text in axes.texts]
        assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)
        assert all(axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1 for box in boxes)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        names = [text.get_text() for text in axes.texts]
        assert names[0] == "ours 0.3, max_downsample 2, tile 16, reuse_steps 4, reuse_blocks"
        assert "0.5" in names  # where that has no room


@pytest.mark.parametrize(
    "families", [["a"], ["a " * 300], ["a" * 600, "b"], [f"family {number}" for number in range(30)], list("abcde")]
)
def test_legend_shows_every_family(figure_of, families):
    figure = figure_of([ours(ToMeConfig(0.5), family, family) for family in families])
    (legend,) = figure.legends
    assert ["".join(text.get_text().split()) for text in legend.get_texts()] == ["".join(f.split()) for f in families]
    box = legend.get_window_extent()
    assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1
    assert 0 <= box.y0 <= box.y1 < min(axes.bbox.y0 for axes in figure.axes)
    assert min(axes.bbox.height for axes in figure.axes[:2]) > 380
    assert min(axes.bbox.height for axes in figure.axes[2:]) > 220


def test_legend_of_long_names_shows_every_family(figure_of):
    figure = figure_of(of_families(*LONG))
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(LONG)
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_no_two_families_look_alike(figure_of):
    figure = figure_of([ours(ToMeConfig(0.5), str(number), str(number)) for number in range(40)])
    looks = {(line.get_color(), line.get_marker()) for line in figure.legends[0].get_lines()}
    assert len(looks) == 40


def test_names_of_one_ratio_in_one_family_stay_whole(figure_of):
    names = [f"{seed} {'which is long ' * 10}".strip() for seed in "ab"]
    figure = figure_of([ours(ToMeConfig(0.5, seed=seed), name, "family") for seed, name in enumerate(names)])
    for axes in figure.axes[:2]:
        assert [" ".join(text.get_text().split()) for text in axes.texts] == names


def test_dollars_in_names_are_dollars(figure_of):
    figure = figure_of([ours(ToMeConfig(0.5), r"$\nothing$", r"$\nothing$")])
    assert figure.legends[0].get_texts()[0].get_text() == figure.axes[0].texts[0].get_text() == r"$\nothing$"


def test_plot_without_points_explains_itself(figure_of):
    figure = figure_of(of_families({}), psnr=math.inf)
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == ["all pictures are identical\nto the unmerged ones"]
        assert list(axes.get_yticks()) == []
    assert figure.legends == []


def test_matplotlib_is_left_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    draw_plot("Title", "", lambda figure: figure.subplots(), width=200, height=200)
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys; from ppdiffusers_tome.tools.figures.plots import draw_plot;"
        "assert 'matplotlib' not in sys.modules;"
        "draw_plot('a', '', lambda figure: figure.subplots(), width=200, height=200);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_intervals_are_bars_of_their_points(figure_of):
    """As wide and as high as the intervals of the table, in the panels of PSNR and of FLIP."""
    configurations = of_families({})
    few, many = figure_of(configurations), figure_of(configurations, pictures=8)
    for axes in few.axes:
        assert list(axes.collections) == []
    for axes in many.axes:
        assert len(axes.collections) == 2 * len(configurations)
        up, across = ([bars.get_segments()[0] for bars in axes.collections[kind::2]] for kind in (1, 0))
        assert all(low[0] == high[0] and low[1] < high[1] for low, high in up)
        assert all(low[1] == high[1] and low[0] < high[0] < low[0] + 0.5 for low, high in across)
    for bars in many.axes[0].collections[1::2]:
        ((low, high),) = bars.get_segments()
        assert high[1] - low[1] > 2  # decibels, where speed-ups lie in hundredths
    assert many.axes[2].yaxis_inverted()
    assert not many.axes[0].yaxis_inverted()
