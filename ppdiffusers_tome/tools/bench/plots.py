"""The plots of benchmarks: bars for the contenders of a sweep, lines for what grows with the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.bench.contenders import FREE, NONE, OURS, OURS_FAST, OURS_KEYS, PORT, PRESETS
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.bench.summary import OUT_OF_MEMORY, UNITS, Result
from ppdiffusers_tome.tools.figures.plots import BLUE, FAINT, GREEN, GREY, INK, NAVY, ORANGE, PURPLE, draw_plot
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

Points = Sequence[tuple[float, float]]
_COLOURS = {
    NONE: GREY, PORT: ORANGE, OURS: BLUE, OURS_FAST: NAVY, FREE: GREEN,
    **dict.fromkeys((*OURS_KEYS.values(), *PRESETS.values()), PURPLE),
}  # fmt: skip
_LINES = (BLUE, NAVY, ORANGE, GREEN, PURPLE, GREY)
_COLUMNS, _WIDTH, _BAR, _PANEL, _HEAD = 2, 680, 30, 80, 100  # the last four in pixels


def plot_sweep(title: str, plan: Plan, results: Sequence[Result]) -> Image.Image:
    """Draw every setting's speed-ups over the model without merging, all to one scale; peaks where nothing was timed.

    Where that model itself did not fit there is no speed-up: bars are then left out and seconds stand alone.
    """
    bar_of = _speed if plan.repeats else _peak
    columns = min(_COLUMNS, len(plan.settings))
    rows = -(-len(plan.settings) // columns)
    longest = max((length for length, _ in map(bar_of, results) if length), default=1.0)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in panels[len(plan.settings) :]:
            axes.set_visible(False)
        for axes, setting in zip(panels, plan.settings, strict=False):
            shown = [result for result in results if result.setting == setting]
            _draw_bars(axes, shown, [bar_of(result) for result in shown])
            axes.set_title(setting.name)
            axes.set_xlim(0, 1.5 * longest)  # room for what stands behind the bars

    of_process = any(result.resident_peak_bytes is not None for result in results)
    memory = f"peak memory of {'the whole process' if of_process else 'tensors'}"
    what = f"speed-up over '{NONE}', and {UNITS[plan.what]}" if plan.repeats else memory
    height = _HEAD + rows * (_PANEL + _BAR * len(plan.variants))
    return draw_plot(title, f"{plan.model} model, {plan.dtype}; {what}", draw, width=columns * _WIDTH, height=height)


def plot_lines(
    title: str, x_name: str, y_name: str, lines: Mapping[str, Points], x_labels: Mapping[float, str]
) -> Image.Image:
    """Draw lines of points over two logarithmic axes, so all must be above 0.

    Args:
        title, x_name, y_name: what is shown, with units.
        lines: points from left to right by name.
        x_labels: what to write under which x.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (name, points), colour in zip(lines.items(), _LINES, strict=False):
            axes.plot(*zip(*points, strict=True), label=name, color=colour, marker="o", linewidth=2.2)
        axes.set(xscale="log", yscale="log", xlabel=x_name)
        axes.set_xticks(list(x_labels), list(x_labels.values()))
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend()

    return draw_plot(title, y_name, draw, width=900, height=560)


def _draw_bars(axes: Any, results: Sequence[Result], bars: Sequence[tuple[float | None, str]]) -> None:
    """A bar a variant, from the top, and what was measured behind it."""
    for number, (result, (length, text)) in enumerate(zip(results, bars, strict=True)):
        axes.barh(number, length or 0, 0.7, color=_COLOURS.get(result.variant.contender, GREY))
        axes.annotate(
            text, (length or 0, number), xytext=(6, 0), textcoords="offset points", va="center",
            color=INK if length else FAINT,
        )  # fmt: skip
    axes.set_yticks(range(len(results)), [result.variant.name for result in results])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def _speed(result: Result) -> tuple[float | None, str]:
    """How long the bar is, and what stands behind it."""
    if result.out_of_memory or result.seconds is None:
        return None, OUT_OF_MEMORY if result.out_of_memory else NOT_MEASURED
    seconds = format_seconds(result.seconds.median)
    if result.speed_up is None:
        return None, seconds
    return result.speed_up.median, f"{result.speed_up.median:.2f}x   {seconds}"


def _peak(result: Result) -> tuple[float | None, str]:
    """The same for memory: of the whole process on a CPU, otherwise of Paddle's tensors."""
    peak = result.peak_bytes if result.resident_peak_bytes is None else result.resident_peak_bytes
    return peak, OUT_OF_MEMORY if result.peak_out_of_memory else format_bytes(peak)
