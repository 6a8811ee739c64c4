"""Compare the evaluated settings with the goals, as tables and as a plot.

    python docs/measured/frontier.py docs/measured/fidelity/photographs.json docs/measured/fidelity/dit.json \\
        --plot docs/images/frontier.png

It reads the ``compare.json`` of one or more models and prints the goals of each model and a table of all settings.
Fidelity is the PSNR to the unmerged image in dB; it and the speed-ups are medians over the images. The port is included
if ``benchmarks.fidelity`` was given ``--port-ratios``. Between two ratios of plain ToMe or ToDo the PSNR is
interpolated, as any ratio can be set. For this package the best evaluated setting counts, as two methods cannot be
interpolated. Run it from the repository, with the package installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

SPEEDS = [round(1.2 + 0.1 * number, 1) for number in range(14)]  # 1.2 to 2.5
PLAIN_TOME, PLAIN_TODO, PORT = "tome", "todo", "port"
IDENTICAL_PSNR = 80.0  # dB, in place of the infinite PSNR of identical images
LABEL_SPEED, LABEL_PSNR = 0.02, 1.0  # a point this close to a labelled one in both gets no label


@dataclass(frozen=True)
class Point:
    """The medians of one configuration.

    Attributes:
        name: in the tables. It omits the ``max_downsample`` that the port needs on a DiT, so that models share a row.
        family: its method, or ``port``.
        line: equal for configurations that differ only in their ratio and stride.
        image_speed, block_speed: speed-up of the whole image, and of the blocks that merge.
        psnr: dB.
        interval: the 95% interval of the PSNR, dB; None if there are too few images.
    """

    name: str
    family: str
    line: str
    image_speed: float
    block_speed: float
    psnr: float
    interval: tuple[float, ...] | None


Evaluation = tuple[str, list[Point]]  # the model's name, and its configurations but the unmerged one
Speed = Callable[[Point], float]
IMAGE, BLOCKS = attrgetter("image_speed"), attrgetter("block_speed")


def read_evaluation(path: Path) -> Evaluation:
    """Read a ``compare.json``, without the settings that are no longer included."""
    results = json.loads(path.read_text())
    rows = [row for row in results["configurations"] if row["psnr_db"] is not None and is_included(row)]
    return results["run"]["model"], [make_point(row) for row in rows]


def is_included(row: Mapping[str, Any]) -> bool:
    """Return True for a configuration that the port or today's package can run."""
    settings = row["configuration"]["tome"]
    has_gone = any(settings.get(name) for name in ("proportional", "min_similarity", "reuse_blocks"))
    return settings.get("method", PLAIN_TOME) in (PLAIN_TOME, "keys", PLAIN_TODO) and not has_gone


def make_point(row: Mapping[str, Any]) -> Point:
    configuration, psnr = row["configuration"], row["psnr_db"]
    settings = {name: value for name, value in configuration["tome"].items() if name not in ("ratio", "sx", "sy")}
    ratio = configuration["tome"]["ratio"]
    if isinstance(ratio, dict):
        settings["levels"] = sorted(ratio)
    bounds = [IDENTICAL_PSNR if value is None else value for value in (psnr["median"], *(psnr["interval"] or ()))]
    return Point(
        name=configuration["name"].split(", max_downsample")[0],
        family=PORT if configuration.get("contender") == PORT else configuration.get("family") or "merged",
        line=json.dumps(settings, sort_keys=True),
        image_speed=row["speedup"]["median"],
        block_speed=row["block_speedup"]["median"],
        psnr=bounds[0],
        interval=tuple(bounds[1:]) or None,
    )


def select_family(points: Sequence[Point], family: str) -> list[Point]:
    return [point for point in points if point.family == family]


def select_ours(points: Sequence[Point]) -> list[Point]:
    """Select the settings beyond the port, plain ToMe and plain ToDo."""
    return [point for point in points if point.family not in (PORT, PLAIN_TOME, PLAIN_TODO)]


def find_frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return True for each point of the Pareto frontier.

    Args:
        points: two values each, of both of which more is better, such as a speed-up and a PSNR. A point dominates
            another if it is at least as good in both and better in one; on the frontier are those that none dominates.
    """
    return [
        not any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)
        for point in points
    ]


def sort_frontier(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other dominates, the slowest first."""
    is_best = find_frontier([(point.image_speed, point.psnr) for point in points])
    return sorted((point for point, best in zip(points, is_best, strict=True) if best), key=IMAGE)


def find_best(points: Sequence[Point], min_speed: float, speed: Speed) -> Point | None:
    """Return the highest PSNR's point at a speed or faster, if any."""
    return max((point for point in points if speed(point) >= min_speed), key=attrgetter("psnr"), default=None)


def interpolate_psnr(points: Sequence[Point], min_speed: float, speed: Speed) -> float | None:
    """Return the highest PSNR at a speed or faster, if any, interpolating between ratios."""
    reached = [point.psnr for point in points if speed(point) >= min_speed]
    for name in {point.line for point in points}:
        line = sorted((speed(point), point.psnr) for point in points if point.line == name)
        if line[0][0] <= min_speed <= line[-1][0]:
            reached.append(float(np.interp(min_speed, *zip(*line, strict=True))))
    return max(reached, default=None)


def compare_goals(points: Sequence[Point]) -> list[str]:
    """Compare this package with the port, and with ToMe and ToDo as Markdown."""
    ours = select_ours(points)
    lines = [
        *compare_port(points),
        "",
        "| speed-up of the image | best of ours there or faster | dB | above plain ToMe | above plain ToDo |",
        "|---|---|---:|---:|---:|",
    ]
    for speed in SPEEDS:
        best = find_best(ours, speed, IMAGE)
        if best is None:
            lines.append(f"| {speed:.1f}x and more | none | - | - | - |")
            break
        plain = [interpolate_psnr(select_family(points, name), speed, IMAGE) for name in (PLAIN_TOME, PLAIN_TODO)]
        above = ["not so fast" if psnr is None else f"{best.psnr - psnr:+.1f}" for psnr in plain]
        lines.append(f"| {speed:.1f}x | {best.name} | {best.psnr:.1f} | {' | '.join(above)} |")
    return lines


def compare_port(points: Sequence[Point]) -> list[str]:
    """Compare this package with the port at its PSNR and at its speed."""
    port = next((point for point in select_family(points, PORT) if point.name == "port 0.5"), None)
    if port is None:
        return ["the port at 0.5 was not evaluated"]
    ours = select_ours(points)
    lines = [f"the port at 0.5: {port.psnr:.1f} dB, blocks {port.block_speed:.2f}x, image {port.image_speed:.2f}x"]
    for word, speed in (("blocks", BLOCKS), ("image", IMAGE)):
        port_saved = 1 - 1 / speed(port)
        fastest = max((point for point in ours if point.psnr >= port.psnr), key=speed, default=None)
        if fastest is not None:
            saved = 1 - 1 / speed(fastest)
            line = (
                f"at its PSNR, {word}: {fastest.name} ({fastest.psnr:.1f} dB, {speed(fastest):.2f}x) saves "
                f"{saved:.0%} of the time, the port {port_saved:.0%}"
            )
            if port_saved > 0:
                line += f"; {saved / port_saved:.1f} times as much, of at most {1 / port_saved:.1f}"
            lines.append(line)
        best = find_best(ours, speed(port), speed)
        if best is not None:
            gain = best.psnr - port.psnr
            lines.append(f"at its speed, {word}: {best.name}, {gain:+.1f} dB ({best.psnr:.1f} dB, {speed(best):.2f}x)")
    return lines


def make_table(evaluations: Sequence[Evaluation]) -> list[str]:
    """Make a Markdown table of all settings: speed-ups and PSNR by model."""
    head = " | ".join(f"{model}: blocks | image | PSNR, dB" for model, _ in evaluations)
    lines = [f"| settings | {head} |", "|---|" + "---:|" * (3 * len(evaluations))]
    by_name = [{point.name: point for point in points} for _, points in evaluations]
    for name in dict.fromkeys(name for points in by_name for name in points):
        lines.append(f"| {name} | {' | '.join(format_point(points.get(name)) for points in by_name)} |")
    return lines


def format_point(point: Point | None) -> str:
    if point is None:
        return "- | - | -"
    interval = "" if point.interval is None else " [{:.1f}, {:.1f}]".format(*point.interval)
    return f"{point.block_speed:.2f}x | {point.image_speed:.2f}x | {point.psnr:.1f}{interval}"


def plot_evaluations(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Plot a panel per model: configurations as dots, frontiers as circles on lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(evaluations), figsize=(7.2 * len(evaluations), 5.6), squeeze=False, constrained_layout=True
    )
    for axes, (model, points) in zip(panels[0], evaluations, strict=True):
        points = [point for point in points if point.image_speed > 1]
        ours = sort_frontier(select_ours(points))
        axes.plot(*split_axes(select_ours(points)), "C0.", alpha=0.4)
        axes.plot(*split_axes(ours), "C0o-", drawstyle="steps-pre", label="best of this package")
        for color, family, label in (("C1", PLAIN_TODO, "plain ToDo"), ("C2", PLAIN_TOME, "plain ToMe"),
                                     ("C3", PORT, "ppdiffusers' port")):  # fmt: skip
            group = select_family(points, family)
            axes.plot(*split_axes(group), f"{color}.", alpha=0.4)
            axes.plot(*split_axes(sort_frontier(group)), f"{color}o")
            if group:
                speeds = np.linspace(min(map(IMAGE, group)), max(map(IMAGE, group)), 400)
                axes.plot(speeds, [interpolate_psnr(group, x, IMAGE) for x in speeds], color, label=label)
        label_frontier(axes, ours)
        axes.set(title=model, xlabel="speed-up of the whole image", ylabel="PSNR to the unmerged image (dB)")
        axes.xaxis.set_major_formatter("{x:g}x")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left")
    figure.savefig(path, dpi=110)


def split_axes(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return speed-ups and PSNR."""
    return [point.image_speed for point in points], [point.psnr for point in points]


def label_frontier(axes: Any, points: Sequence[Point]) -> None:
    """Label the points of a frontier, and make room for the labels."""
    labelled: list[Point] = []
    for point in points:
        if any(
            abs(point.image_speed - other.image_speed) <= LABEL_SPEED and abs(point.psnr - other.psnr) <= LABEL_PSNR
            for other in labelled
        ):
            continue
        labelled.append(point)
        axes.annotate(
            point.name, (point.image_speed, point.psnr), (3, 5), textcoords="offset points", fontsize=7, rotation=20
        )
    axes.margins(x=0.08, y=0.3)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.3 * (right - left))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluations", type=Path, nargs="+", help="compare.json of each model")
    parser.add_argument("--plot", type=Path, help="file of the plot")
    args = parser.parse_args()
    evaluations = [read_evaluation(path) for path in args.evaluations]
    for model, points in evaluations:
        print(f"## {model}\n\n" + "\n".join(compare_goals(points)) + "\n")
    print("\n".join(make_table(evaluations)))
    if args.plot:
        plot_evaluations(evaluations, args.plot)


if __name__ == "__main__":
    main()
