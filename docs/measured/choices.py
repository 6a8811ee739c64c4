"""Compare pairs of settings, image by image.

    cd docs/measured/fidelity
    python ../choices.py photographs.json dit.json photographs-tiles.json photographs-steps.json

It reads the ``compare.json`` of one or more models and prints the PSNR of one configuration minus that of another in
dB: the median over the images with its 95% interval. If a model has several evaluations, the first that has both
configurations counts. Run it from the repository, with the package installed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.measure.stats import Median

# Names of docs/measured/suites. The presets are "todo, random" 0.75 and 3x3.
CHOICES = (
    ("todo, random 0.75", "tome 0.5"),
    ("todo, random 3x3", "tome 0.5"),
    ("todo, random 4x4, 2 levels", "tome 0.5"),
    ("todo, random 4x4, 2 levels", "todo, random 4x4"),
    ("tome 0.5, 90% of the steps", "tome 0.5"),
    ("todo, random 0.75, 90% of the steps", "todo, random 0.75"),
    ("todo, random 3x3, 90% of the steps", "todo, random 3x3"),
    ("todo, random 4x4, 90% of the steps", "todo, random 4x4"),
    ("todo, random 3x3, 90% of the steps", "tome 0.5"),
    ("todo, random 3x3, 90% of the steps", "todo, random 0.75"),
    ("todo, random 3x3, 80% of the steps", "todo, random 3x3"),
    ("todo, random 4x4, 80% of the steps", "todo, random 4x4"),
    ("keys 0.5", "tome 0.5"),
    ("tome 0.7, first half", "tome 0.5"),
    ("tome 0.7, first half", "tome 0.7, second half"),
    ("tome, proportional 0.25", "tome 0.25"),
    ("tome, proportional 0.5", "tome 0.5"),
    ("tome, proportional 0.7", "tome 0.7"),
    ("tome, proportional 0.74", "tome 0.74"),
    ("tome, proportional 0.5", "todo, random 0.75"),
    ("todo, random 0.75", "todo 0.75"),
    ("pool 0.75", "todo, random 0.75"),
    ("tile 4, 0.5", "tome 0.5"),
    ("tile 4, 0.74", "tome 0.74"),
    ("tile 8, 0.5", "tome 0.5"),
    ("tile 8, 0.74", "tome 0.74"),
    ("tile 16, 0.5", "tome 0.5"),
    ("tile 16, 0.74", "tome 0.74"),
    ("tile 8, proportional 0.5", "tome, proportional 0.5"),
    ("tile 8, proportional 0.74", "tome, proportional 0.74"),
    ("tile 8, proportional 0.5, 80% of the steps", "tile 8, proportional 0.5"),
    ("tile 8, proportional 0.5, 90% of the steps", "tile 8, proportional 0.5"),
    ("tile 8, proportional 0.6, 90% of the steps", "tome 0.5"),
    ("tile 8, 4x4, proportional 0.8, 90% of the steps", "tome 0.5"),
    ("tile 8, proportional 0.74, 80% of the steps", "tile 8, proportional 0.74"),
    ("tile 8, proportional 0.74, 90% of the steps", "tile 8, proportional 0.74"),
    ("keys, tile 8, 0.75", "keys 0.75"),
    ("tiles 0.5", "tile 16, 0.5"),
    ("reused 0.5", "tiles 0.5"),
    ("tofu 0.5", "tome 0.5"),
    ("prune 0.5", "tome 0.5"),
)

Rows = Mapping[str, Mapping[str, Any]]  # of one evaluation, by the name of the configuration


def make_table(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Make a Markdown table: a row a choice, a column a model."""
    models: dict[str, list[Rows]] = {}
    for evaluation in evaluations:
        rows = {row["configuration"]["name"]: row for row in evaluation["configurations"]}
        models.setdefault(evaluation["run"]["model"], []).append(rows)
    head = " | ".join(f"{model}, dB" for model in models)
    lines = [f"| settings | compared with | {head} |", "|---|---|" + "---:|" * len(models)]
    for first, second in CHOICES:
        cells = [format_difference(runs, first, second) for runs in models.values()]
        lines.append(f"| {first} | {second} | {' | '.join(cells)} |")
    return lines


def format_difference(evaluations: Sequence[Rows], first: str, second: str) -> str:
    """Format a difference like ``+8.1 [+6.6, +9.8]``; a dash if no evaluation has both."""
    rows = next((rows for rows in evaluations if first in rows and second in rows), None)
    if rows is None:
        return "-"
    return subtract_psnr(rows[first], rows[second]).format("{:+.1f}".format)


def subtract_psnr(first: Mapping[str, Any], second: Mapping[str, Any]) -> Median:
    """Return the difference in PSNR of two configurations of a ``compare.json``, in dB.

    Raises:
        KeyError: the second has no image of a prompt and seed of the first.
    """
    by_case = [
        {
            (sample["prompt"], sample["seed"]): math.inf if sample["psnr_db"] is None else float(sample["psnr_db"])
            for sample in configuration["samples"]
        }
        for configuration in (first, second)
    ]
    pairs = [(psnr, by_case[1][case]) for case, psnr in by_case[0].items()]
    return Median.from_values([0.0 if a == b else a - b for a, b in pairs])  # two infinite ones do not differ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluations", type=Path, nargs="+", help="compare.json of each model")
    args = parser.parse_args()
    print("\n".join(make_table([json.loads(path.read_text()) for path in args.evaluations])))


if __name__ == "__main__":
    main()
