"""What the evaluations of the methods say of the goals, and the plot of them.

    python docs/measured/frontier.py docs/measured/fidelity/bundled-dit.json --plot docs/images/fidelity.png

It takes the ``evaluate.json`` of one model or of several, and needs numpy and matplotlib alone. Likeness is the PSNR
to the unmerged picture in dB, speed the speed-up of the whole picture; both are medians over the pictures. What is
compared is the best of each family at a speed: the one with most PSNR of those that are at least as fast.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SPEEDS = [round(1.2 + 0.1 * number, 1) for number in range(14)]  # 1.2 to 2.5
PLAIN_TOME, PLAIN_TODO, PORT = "tome", "todo", "port"
GROUPS = {PORT: "ppdiffusers' port", PLAIN_TOME: "plain ToMe", PLAIN_TODO: "plain ToDo", "": "best of this package"}


@dataclass(frozen=True)
class Point:
    """A configuration: speed-up of the whole picture and of its blocks, and PSNR in dB, infinite for equal pictures."""

    name: str
    family: str
    speed: float
    block_speed: float
    psnr: float


def read(path: Path) -> tuple[str, list[Point]]:
    """The model of an evaluation, and its configurations but the unmerged one."""
    found = json.loads(path.read_text())
    return found["run"]["model"], [
        Point(
            row["configuration"]["name"], row["configuration"]["family"], row["speed_up"]["median"],
            row["block_speed_up"]["median"], _psnr(row),
        )
        for row in found["configurations"]
        if row["psnr_db"] is not None
    ]  # fmt: skip


def _psnr(row: dict[str, Any]) -> float:
    median = row["psnr_db"]["median"]
    return math.inf if median is None else median


def best_at(points: Sequence[Point], least: float, speed: Callable[[Point], float]) -> Point | None:
    """The one with most PSNR of those that reach a speed; None where none does."""
    return max((point for point in points if speed(point) >= least), key=lambda point: point.psnr, default=None)


def fastest_at(points: Sequence[Point], least: float, speed: Callable[[Point], float]) -> Point | None:
    """The fastest of those that reach a PSNR; None where none does."""
    return max((point for point in points if point.psnr >= least), key=speed, default=None)


def group(points: Sequence[Point], name: str) -> list[Point]:
    """The configurations of a family; of the name "" all that are this package's."""
    return [point for point in points if point.family == name or (not name and point.family != PORT)]


def of_blocks(point: Point) -> float:
    return point.block_speed


def of_whole(point: Point) -> float:
    return point.speed


def goals(points: Sequence[Point]) -> list[str]:
    """A line a goal, with the figures."""
    ours = group(points, "")
    lines = []
    reference = next((point for point in group(points, PORT) if point.name == "port 0.5"), None)
    if reference is not None:
        lines += against(reference, ours)
    lines += [
        "",
        "| at least this fast | best of ours | dB | above plain ToMe | above plain ToDo |",
        "|---|---|---:|---:|---:|",
    ]
    for speed in SPEEDS:
        best = best_at(ours, speed, of_whole)
        if best is None:
            lines.append(f"| {speed:.1f}x | none | - | - | - |")
            continue
        above = [_above(best, best_at(group(points, name), speed, of_whole)) for name in (PLAIN_TOME, PLAIN_TODO)]
        lines.append(f"| {speed:.1f}x | {best.name} | {best.psnr:.1f} | {' | '.join(above)} |")
    return lines


def against(reference: Point, ours: Sequence[Point]) -> list[str]:
    """What this package reaches at the port's likeness, and at its speed."""
    lines = [
        f"the port at 0.5: {reference.psnr:.1f} dB, blocks {reference.block_speed:.2f}x, picture {reference.speed:.2f}x"
    ]
    for word, speed in (("blocks", of_blocks), ("picture", of_whole)):
        alike, fast = fastest_at(ours, reference.psnr, speed), best_at(ours, speed(reference), speed)
        if alike is not None:
            own, its = _saved(speed(alike)), _saved(speed(reference))
            lines.append(
                f"at its likeness, {word}: {alike.name} saves {own:.0%} of the time, the port {its:.0%}: "
                f"{own / its:.1f} times as much ({alike.psnr:.1f} dB, {speed(alike):.2f}x)"
            )
        if fast is not None:
            lines.append(
                f"at its speed, {word}: {fast.name} has {fast.psnr - reference.psnr:+.1f} dB ({fast.psnr:.1f} dB, "
                f"{speed(fast):.2f}x)"
            )
    return lines


def _saved(speed_up: float) -> float:
    return 1 - 1 / speed_up


def _above(best: Point, other: Point | None) -> str:
    return "it is not so fast" if other is None else f"{best.psnr - other.psnr:+.1f}"


def plot(evaluations: Sequence[tuple[str, list[Point]]], path: Path) -> None:
    """A panel a model: every configuration as a dot, and the best of each group at every speed as a line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(evaluations), figsize=(6.4 * len(evaluations), 4.6), squeeze=False, constrained_layout=True
    )
    for axes, (model, points) in zip(panels[0], evaluations, strict=True):
        finite = [point for point in points if math.isfinite(point.psnr)]
        for number, (name, label) in enumerate(GROUPS.items()):
            own = group(finite, name)
            if not own:
                continue
            colour = f"C{number}"
            if name:
                axes.plot([p.speed for p in own], [p.psnr for p in own], "o", color=colour, markersize=4, alpha=0.6)
            else:
                axes.plot([p.speed for p in own], [p.psnr for p in own], ".", color="0.75", markersize=5, zorder=0)
            speeds = np.unique([min(p.speed for p in own), *(p.speed for p in own)])
            best = [best_at(own, speed, of_whole) for speed in speeds]
            axes.plot(
                speeds, [each.psnr for each in best if each is not None], drawstyle="steps-pre", color=colour,
                label=label,
            )  # fmt: skip
        axes.set(title=model, xlabel="speed-up of the whole picture", ylabel="PSNR to the unmerged picture (dB)")
        axes.xaxis.set_major_formatter("{x:g}x")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluations", type=Path, nargs="+", help="evaluate.json of each model")
    parser.add_argument("--plot", type=Path, help="where the plot goes")
    args = parser.parse_args()
    evaluations = [read(path) for path in args.evaluations]
    for model, points in evaluations:
        print(f"## {model}\n\n" + "\n".join(goals(points)) + "\n")
    if args.plot:
        plot(evaluations, args.plot)


if __name__ == "__main__":
    main()
