"""The plot of ``bench results``: a row of panels a machine, a panel a size, a bar a contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.bench.contenders import FREE, NONE, OURS, OURS_TILE, PORT, PRESETS
from ppdiffusers_tome.tools.bench.gpu.estimate import by_strength
from ppdiffusers_tome.tools.bench.results import TOMESD, TORCH
from ppdiffusers_tome.tools.bench.results_table import TITLE, Machine, cell_text, rows_of, words
from ppdiffusers_tome.tools.figures import plots
from ppdiffusers_tome.tools.measure.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

_COLOURS = {
    NONE: plots.GREY, OURS: plots.BLUE, OURS_TILE: plots.NAVY, PORT: plots.ORANGE, TOMESD: plots.BROWN,
    FREE: plots.GREEN,
    **dict(zip((PRESETS[name] for name in by_strength()), (plots.TEAL, plots.PURPLE, plots.PINK), strict=True)),
}  # fmt: skip
_WIDTH, _NAMES, _BAR, _PANEL, _HEAD = 270, 230, 27, 50, 100  # pixels
_TITLE = 680  # the least that holds the title


def plot(machines: Sequence[Machine]) -> Image.Image:
    """A row of panels a machine, a panel a size, a bar a contender: its speed-up, and its seconds behind it."""
    contenders = [contender for contender in rows_of(machines) if contender != TORCH]
    columns = max(len(machine.sizes) for machine in machines)
    cells = [cell for machine in machines for cell in machine.found["cells"]]
    longest = max((cell["speed_up"]["median"] for cell in cells if cell["speed_up"]), default=1.0)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(machines), columns, squeeze=False, sharey=True)
        for row, machine in zip(panels, machines, strict=True):
            for axes in row[len(machine.sizes) :]:
                axes.set_visible(False)
            for axes, size in zip(row, machine.sizes, strict=False):
                _draw_bars(axes, [machine.cell(size, contender) for contender in contenders], contenders)
                axes.set_title(f"{machine.name}, {size}x{size}")
                axes.set_xlim(0, 2.1 * longest)  # room for what stands behind the bars

    note = "speed-up over unmerged, and seconds of a call; tomesd against PyTorch's own unmerged call"
    height = _HEAD + len(machines) * (_PANEL + _BAR * len(contenders))
    return plots.draw_plot(TITLE, note, draw, width=max(_TITLE, _NAMES + columns * _WIDTH), height=height)


def _draw_bars(axes: Any, cells: Sequence[Mapping[str, Any] | None], contenders: Sequence[str]) -> None:
    """A bar a contender, from the top, and what was measured behind it."""
    for number, (cell, contender) in enumerate(zip(cells, contenders, strict=True)):
        speed_up = cell["speed_up"]["median"] if cell and cell["speed_up"] else None
        text = cell_text(cell)
        if cell and cell["seconds"] and speed_up is not None:
            text = f"{speed_up:.2f}x   {format_seconds(cell['seconds']['median'])}"
        axes.barh(number, speed_up or 0, 0.7, color=_COLOURS[contender])
        axes.annotate(
            text, (speed_up or 0, number), xytext=(6, 0), textcoords="offset points", va="center",
            color=plots.INK if speed_up else plots.FAINT,
        )  # fmt: skip
    axes.set_yticks(range(len(contenders)), [words(contender) for contender in contenders])
    axes.tick_params(axis="y", labelcolor=plots.INK)
    axes.set_ylim(len(contenders) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
