"""What the evaluations of the methods say of the goals, and the plot of them.

    python docs/measured/frontier.py docs/measured/fidelity/bundled.json docs/measured/fidelity/bundled-dit.json \\
        --plot docs/images/frontier.png

It takes the ``evaluate.json`` of one model or of several, and prints what docs/en/results/fidelity.md shows: the goals
of each model and a table of all settings. Fidelity is the PSNR to the unmerged picture in dB, speed
the speed-up; both are medians over the pictures. The port is among them where ``evaluate`` was given
``--port-ratios``. ToMe and ToDo are read off straight lines between neighbouring ratios, as other ratios get there;
ours is the best of the settings themselves, as nothing lies between two methods. Run it from the repository, with the
package installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ppdiffusers_tome.tools.measure.stats import find_frontier

SPEEDS = [round(1.2 + 0.1 * number, 1) for number in range(14)]  # 1.2 to 2.5
PLAIN_TOME, PLAIN_TODO, PORT = "tome", "todo", "port"
OURS = "best of this package"
MOST = 80.0  # dB, in place of the infinite PSNR of pictures that are identical


@dataclass(frozen=True)
class Point:
    """A configuration: speed-up of the whole picture, of the blocks that merge, and PSNR in dB."""

    name: str
    family: str
    speed: float
    block_speed: float
    psnr: float
    line: str = ""  # what it shares with settings that differ in their ratio and cells alone
    spread: tuple[float, float] | None = None  # of the median PSNR, dB: the ends of its 95% interval


Speed = Callable[[Point], float]


def read(path: Path) -> tuple[str, list[Point]]:
    """The model of an evaluation, and its configurations but the unmerged one."""
    found = json.loads(path.read_text())
    return found["run"]["model"], [
        Point(
            row["configuration"]["name"], _family(row["configuration"]), row["speed_up"]["median"],
            row["block_speed_up"]["median"], _finite(row["psnr_db"]["median"]), _line(row["configuration"]),
            _spread(row["psnr_db"]),
        )
        for row in found["configurations"]
        if row["psnr_db"] is not None
    ]  # fmt: skip


def _family(configuration: dict[str, Any]) -> str:
    """The port is one family, with whatever else it was asked for: on a DiT it needs a ``max_downsample`` of 2."""
    return PORT if configuration["contender"] == PORT else str(configuration["family"])


def _line(configuration: dict[str, Any]) -> str:
    settings = dict(configuration.get("tome") or {})
    ratio = settings.pop("ratio", None)
    levels = sorted(ratio) if isinstance(ratio, dict) else None
    return repr((levels, sorted((name, value) for name, value in settings.items() if name not in ("sx", "sy"))))


def _finite(psnr: Any) -> float:
    return MOST if psnr is None else float(psnr)


def _spread(median: dict[str, Any]) -> tuple[float, float] | None:
    interval = median.get("interval")
    return None if interval is None else (_finite(interval[0]), _finite(interval[1]))


def of_picture(point: Point) -> float:
    return point.speed


def of_blocks(point: Point) -> float:
    return point.block_speed


def frontier(points: Sequence[Point], speed: Speed) -> list[Point]:
    """Those that no other beats in both, the slowest first."""
    unbeaten = find_frontier([(speed(point), point.psnr) for point in points])
    return sorted((point for point, best in zip(points, unbeaten, strict=True) if best), key=speed)


def psnr_at(points: Sequence[Point], asked: float, speed: Speed) -> float | None:
    """The most that settings of one method reach at a speed or faster; None beyond the fastest.

    Between two neighbouring ratios it is on the straight line between them.
    """
    reached = [point.psnr for point in points if speed(point) >= asked]
    for name in {point.line for point in points}:
        line = sorted((speed(point), point.psnr) for point in points if point.line == name)
        if line[0][0] <= asked <= line[-1][0]:
            reached.append(float(np.interp(asked, *zip(*line, strict=True))))
    return max(reached, default=None)


def fastest_at(points: Sequence[Point], psnr: float, speed: Speed) -> Point | None:
    """The fastest of those that reach a PSNR; None where none does."""
    return max((point for point in points if point.psnr >= psnr), key=speed, default=None)


def best_at(points: Sequence[Point], asked: float, speed: Speed) -> Point | None:
    """The one with most PSNR of those that reach a speed; None where none does."""
    return max((point for point in points if speed(point) >= asked), key=lambda point: point.psnr, default=None)


def best_psnr_at(points: Sequence[Point], asked: float, speed: Speed) -> float | None:
    """The most PSNR of those that reach a speed; None where none does."""
    best = best_at(points, asked, speed)
    return None if best is None else best.psnr


def family(points: Sequence[Point], name: str) -> list[Point]:
    return [point for point in points if point.family == name]


def ours(points: Sequence[Point]) -> list[Point]:
    """What this package adds to the port, ToMe and ToDo as they were published."""
    return [point for point in points if point.family not in (PORT, PLAIN_TOME, PLAIN_TODO)]


def goals(points: Sequence[Point]) -> list[str]:
    """A line a goal, with the figures."""
    reference = next((point for point in family(points, PORT) if _without_level(point.name) == "port 0.5"), None)
    lines = ["the port at 0.5 was not evaluated"] if reference is None else against(reference, ours(points))
    lines += [
        "",
        "| speed-up of the picture | best of ours there or faster | dB | above plain ToMe | above plain ToDo |",
        "|---|---|---:|---:|---:|",
    ]
    for speed in SPEEDS:
        best = best_at(ours(points), speed, of_picture)
        if best is None:
            lines.append(f"| {speed:.1f}x and more | none | - | - | - |")
            break
        others = [psnr_at(family(points, name), speed, of_picture) for name in (PLAIN_TOME, PLAIN_TODO)]
        above = ["not so fast" if other is None else f"{best.psnr - other:+.1f}" for other in others]
        lines.append(f"| {speed:.1f}x | {best.name} | {best.psnr:.1f} | {' | '.join(above)} |")
    return lines


def table(evaluations: Sequence[tuple[str, list[Point]]]) -> list[str]:
    """All settings as lines of Markdown: speed-up of blocks and picture and PSNR in dB, with its interval, by model."""
    head = " | ".join(f"{model}: blocks | picture | PSNR, dB" for model, _ in evaluations)
    lines = [f"| settings | {head} |", "|---|" + "---:|" * (3 * len(evaluations))]
    found = [{_without_level(point.name): point for point in points} for _, points in evaluations]
    for name in dict.fromkeys(name for points in found for name in points):
        cells = []
        for points in found:
            point = points.get(name)
            if point is None:
                cells += ["-"] * 3
                continue
            around = "" if point.spread is None else f" [{point.spread[0]:.1f}, {point.spread[1]:.1f}]"
            cells += [f"{point.block_speed:.2f}x", f"{point.speed:.2f}x", f"{point.psnr:.1f}{around}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _without_level(name: str) -> str:
    """The port's name without the ``max_downsample`` that it needs on a DiT, so that models share a line."""
    return name.split(", max_downsample")[0]


def against(reference: Point, points: Sequence[Point]) -> list[str]:
    """What these reach at the port's PSNR, and at its speed."""
    lines = [
        f"the port at 0.5: {reference.psnr:.1f} dB, blocks {reference.block_speed:.2f}x, picture {reference.speed:.2f}x"
    ]
    for word, speed in (("blocks", of_blocks), ("picture", of_picture)):
        saved = 1 - 1 / speed(reference)
        alike = fastest_at(points, reference.psnr, speed)
        if alike is not None:
            own = 1 - 1 / speed(alike)
            line = (
                f"at its PSNR, {word}: {alike.name} ({alike.psnr:.1f} dB, {speed(alike):.2f}x) saves {own:.0%} of the "
                f"time, the port {saved:.0%}"
            )
            times = f"; {own / saved:.1f} times as much, of {1 / saved:.1f} that are possible" if saved > 0 else ""
            lines.append(line + times)
        best = best_at(points, speed(reference), speed)
        if best is not None:
            apart = best.psnr - reference.psnr
            lines.append(f"at its speed, {word}: {best.name}, {apart:+.1f} dB ({best.psnr:.1f} dB, {speed(best):.2f}x)")
    return lines


def plot(evaluations: Sequence[tuple[str, list[Point]]], path: Path) -> None:
    """A panel a model: every configuration as a dot, and the frontier of each group as a line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(evaluations), figsize=(7.2 * len(evaluations), 5.6), squeeze=False, constrained_layout=True
    )
    for axes, (model, points) in zip(panels[0], evaluations, strict=True):
        points = [point for point in points if point.speed > 1]
        groups = {
            OURS: ours(points), "plain ToDo": family(points, PLAIN_TODO), "plain ToMe": family(points, PLAIN_TOME),
            "ppdiffusers' port": family(points, PORT),
        }  # fmt: skip
        for number, (label, own) in enumerate(groups.items()):
            best = frontier(own, of_picture)
            axes.plot([p.speed for p in own], [p.psnr for p in own], ".", color=f"C{number}", alpha=0.4)
            axes.plot([p.speed for p in best], [p.psnr for p in best], "o", color=f"C{number}")
            if own:  # as the goals have it: of ours, what is there or faster; of the others, other ratios too
                reaches = best_psnr_at if label == OURS else psnr_at
                xs = np.linspace(min(p.speed for p in own), max(p.speed for p in own), 400)
                axes.plot(xs, [reaches(own, x, of_picture) for x in xs], color=f"C{number}", label=label)
        for point in frontier(ours(points), of_picture):
            axes.annotate(
                point.name, (point.speed, point.psnr), (3, 5), textcoords="offset points", fontsize=7, rotation=20
            )
        axes.set(title=model, xlabel="speed-up of the whole picture", ylabel="PSNR to the unmerged picture (dB)")
        axes.xaxis.set_major_formatter("{x:g}x")
        axes.grid(alpha=0.3)
        axes.margins(x=0.3, y=0.4)  # for the names beside the dots
        axes.legend(loc="lower left")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluations", type=Path, nargs="+", help="evaluate.json of each model")
    parser.add_argument("--plot", type=Path, help="where the plot goes")
    args = parser.parse_args()
    evaluations = [read(path) for path in args.evaluations]
    for model, points in evaluations:
        print(f"## {model}\n\n" + "\n".join(goals(points)) + "\n")
    print("\n".join(table(evaluations)))
    if args.plot:
        plot(evaluations, args.plot)


if __name__ == "__main__":
    main()
