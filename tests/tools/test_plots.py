"""Plots: their size and title, that names keep clear of each other, and that matplotlib is left as it was."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import matplotlib
import numpy as np
from matplotlib.text import Text

from ppdiffusers_tome.tools.figures.plots import BLUE, draw_plot, name_points


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
        name_points(axes, [*points, (1.5, 0.5, "")])
        names.extend(axes.texts)

    draw_plot("Title", "", draw, width=640, height=480)
    assert [text.get_text() for text in names] == [name for _, _, name in points]
    boxes = [Text.get_window_extent(text) for text in names]  # without the lines to their points
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


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
