"""Make the table and the plot of the results page from docs/measured.

    PYTHONPATH=tests python -m benchmarks.results_page docs/measured/performance/README.md

The script writes docs/images/results.png, too.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import describe, presets_by_strength, replace_between, table
from benchmarks.variants import FREE, NONE, OURS, PORT, TILE
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED, format_seconds

BEGIN, END = (
    "<!-- what follows is made by benchmarks.results_page -->",
    "<!-- what benchmarks.results_page makes ends here -->",
)
TORCH, TOMESD = "torch", "tomesd"  # tomesd_unet.py adds them


def _describe_preset(name: str) -> str:
    config = ToMeConfig.preset(name)
    return f"preset {name}, 1 key in {1 / (1 - config.highest_ratio):.0f}"


# Every row and its title, from the first to the last.
TITLES = {
    NONE: "unmerged",
    OURS: "this package, global matching",
    "ours-tile": f"this package, tile={TILE}",
    **{f"preset-{name}": _describe_preset(name) for name in presets_by_strength()},
    PORT: "ppdiffusers' own port",
    TORCH: "PyTorch, unmerged",
    TOMESD: "tomesd on PyTorch, relative to PyTorch unmerged",
    FREE: "limit: tokens dropped at no cost",
}


@dataclass(frozen=True)
class Machine:
    """The content of a ``results.json``."""

    found: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The processor: ``Intel(R) Xeon(R) Processor @ 2.60GHz`` -> ``Intel Xeon``."""
        name = re.sub(r"\((R|TM)\)|@.*|\bCPU\b|\b(\d+-Core )?Processor\b", " ", self.found["machine"]["processor"])
        return " ".join(name.split())

    @property
    def rounds(self) -> dict[int, int]:
        """The number of rounds by size, in pixels."""
        return {row["case"]["size"]: row["rounds"] for row in self.found["results"] if row["variant"] == NONE}

    def find(self, size: int, variant: str) -> Mapping[str, Any] | None:
        """Return the result of a variant at a size, if measured."""
        return next((row for row in self.found["results"]
                     if row["case"]["size"] == size and row["variant"].partition(" ")[0] == variant), None)  # fmt: skip

    def describe(self) -> str:
        """Return the machine, and when and how often it measured."""
        rounds = ", ".join(f"{number} at {size}" for size, number in self.rounds.items())
        on = describe({name: value for name, value in self.found["machine"].items() if name != "memory"})
        torch = self.found.get("torch_machine")
        process = f"; PyTorch's process: {describe(torch)}" if torch else ""
        return f"{self.name}, {self.found['date']}, rounds: {rounds}; {on}{process}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="such as docs/measured/performance/README.md")
    path: Path = parser.parse_args(argv).page
    docs = path.resolve().parents[2]
    machines = read_machines(docs / "measured")
    replace_between(path, BEGIN, END, make_page(machines))
    plot(machines).savefig(docs / "images" / "results.png", dpi=100)


def read_machines(folder: Path) -> list[Machine]:
    """Read the results of all machines, in the order of their files' names."""
    return [Machine(json.loads(file.read_text(encoding="utf-8"))) for file in sorted(folder.glob("*.json"))]


def make_page(machines: Sequence[Machine]) -> str:
    """Return the generated part of the page: table and notes."""
    columns = [(machine, size) for machine in machines for size in machine.rounds]
    rows = [
        [title, *(_format(machine.find(size, variant)) for machine, size in columns)]
        for variant, title in TITLES.items()
    ]
    case = machines[0].found["results"][0]["case"]
    attention = "onnxruntime's kernels" if case["attention"] == "cpu" else f"{case['attention']} attention"
    notes = [
        "seconds of one call of the UNet, median of the rounds, in each of which all take turns; in brackets the "
        "speed-up over unmerged, likewise",
        f"Stable Diffusion 1.5's shape, random weights, {case['dtype']}, batch size {case['batch']} (2 per step with "
        f"guidance); ratio 0.5 where a preset sets none; {attention} for all on Paddle, unmerged and merged",
        "PyTorch: the same shape in diffusers, in a process of its own, with its scaled_dot_product_attention; tomesd "
        "is compared with that: speed-up, and the remaining share of the seconds",
        *(machine.describe() for machine in machines),
    ]
    headings = ["", *(f"{size}x{size}, {machine.name}" for machine, size in columns)]
    head = ["![Speed-up over unmerged](../../images/results.png)", "", table(headings, rows)]
    return "\n".join([*head, *(f"- {note}" for note in notes)])


def _format(result: Mapping[str, Any] | None) -> str:
    """Return ``5.38 s (1.58x)``; for tomesd also the share of PyTorch's unmerged seconds."""
    if result is None:
        return NOT_MEASURED
    if result["seconds"] is None:
        return "out of memory"
    seconds, speedup = format_seconds(result["seconds"]["median"]), result["speedup"]
    if speedup is None or result["variant"] in (NONE, TORCH):
        return seconds
    share = f", {1 / speedup['median']:.0%}" if result["variant"] == TOMESD else ""
    return f"{seconds} ({speedup['median']:.2f}x{share})"


def plot(machines: Sequence[Machine]) -> Any:
    """Return a figure with a panel per machine and size."""
    from matplotlib.figure import Figure

    columns = [(machine, size) for machine in machines for size in machine.rounds]
    variants = [variant for variant in TITLES if variant != TORCH]
    figure = Figure(figsize=(2.5 + 2.7 * len(columns), 4), layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False, sharey=True, sharex=True)[0]
    for axes, (machine, size) in zip(panels, columns, strict=True):
        for number, variant in enumerate(variants):
            result = machine.find(size, variant) or {}
            speedup = (result.get("speedup") or {}).get("median", 0)
            axes.barh(number, speedup, 0.7, color=f"C{number}")
            axes.annotate(_format(result or None), (speedup, number), xytext=(6, 0), textcoords="offset points",
                          va="center", size=8)  # fmt: skip
        axes.set(title=f"{machine.name}, {size}x{size}", xlim=(0, 4.5), xticks=[])
        axes.set_yticks(range(len(variants)), [TITLES[variant].partition(", relative")[0] for variant in variants])
    panels[0].invert_yaxis()
    figure.suptitle("Speed-up over unmerged, and seconds of a call (tomesd: over PyTorch unmerged)")
    return figure


if __name__ == "__main__":
    main()
