"""The plot of a benchmark: a panel per case, a bar per variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.bench.summary import OUT_OF_MEMORY, Result
from ppdiffusers_tome.tools.bench.variants import FREE, NONE, PORT, split_label
from ppdiffusers_tome.tools.figures.plots import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, draw_plot
from ppdiffusers_tome.tools.measure.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

_COLOURS = {NONE: GREY, "ratio-0": GREY, "removed": GREY, PORT: ORANGE, FREE: GREEN}
_WIDTH, _BAR, _PANEL, _HEAD = 680, 30, 80, 100  # pixels
_NUM_COLUMNS = 2


def plot_results(title: str, results: Sequence[Result]) -> Image.Image:
    """Plot the speed-ups, or the peak memory where nothing was timed."""
    cases = list(dict.fromkeys(result.case for result in results))
    timed = any(result.seconds is not None or result.out_of_memory for result in results)
    lengths = [_bar(result, timed)[0] for result in results]
    num_columns = min(_NUM_COLUMNS, len(cases))
    num_rows = -(-len(cases) // num_columns)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
        for axes in panels[len(cases) :]:
            axes.set_visible(False)
        for axes, case in zip(panels, cases, strict=False):
            in_panel = [result for result in results if result.case == case]
            for number, result in enumerate(in_panel):
                length, text = _bar(result, timed)
                name = split_label(result.variant)[0]
                axes.barh(number, length, 0.7, color=_COLOURS.get(name, PURPLE if "preset" in name else BLUE))
                axes.annotate(text, (length, number), xytext=(6, 0), textcoords="offset points", va="center",
                              color=INK if length else FAINT)  # fmt: skip
            axes.set_yticks(range(len(in_panel)), [result.variant for result in in_panel])
            axes.tick_params(axis="y", labelcolor=INK)
            axes.set(title=case.name, xlim=(0, 1.5 * max(lengths) or 1))  # room for the text behind the bars
            axes.invert_yaxis()
            axes.grid(visible=False)
            axes.xaxis.set_visible(False)
            axes.spines["bottom"].set_visible(False)

    meaning = f"speed-up over '{NONE}', and seconds" if timed else "peak memory"
    height = _HEAD + num_rows * (_PANEL + _BAR * len(results) // len(cases))
    note = f"{cases[0].model} model, {cases[0].dtype}; {meaning}"
    return draw_plot(title, note, draw, width=num_columns * _WIDTH, height=height)


def _bar(result: Result, timed: bool) -> tuple[float, str]:
    """Return the length of a bar and the text behind it."""
    if timed:
        return (0.0 if result.speed_up is None else result.speed_up.median), result.format()
    peak = result.process_bytes
    return peak or 0, OUT_OF_MEMORY if result.peak_out_of_memory else format_bytes(peak)
