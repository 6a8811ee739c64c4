"""What a choice of settings costs or gains against another, picture by picture.

    python docs/measured/choices.py docs/measured/fidelity/bundled.json docs/measured/fidelity/bundled-dit.json

It takes the ``evaluate.json`` of one model or of several, and prints what docs/en/results/fidelity.md shows: the PSNR
of one configuration less that of the other in dB, as the median over the pictures with its 95% interval. Run it from
the repository, with the package installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.evaluation.differences import MEASURES, PSNR, in_psnr
from ppdiffusers_tome.tools.evaluation.intervals import with_interval

# Of the suites, by their names there; the presets are todo, random 0.75, 3x3, and 4x4 at two levels.
CHOICES = (
    ("todo, random 0.75", "tome 0.5"),
    ("todo, random 3x3", "tome 0.5"),
    ("todo, random 4x4, 2 levels", "tome 0.5"),
    ("todo, random 4x4, 2 levels", "todo, random 4x4"),
    ("keys 0.5", "tome 0.5"),
    ("tome 0.7, first half", "tome 0.5"),
    ("tome 0.7, first half", "tome 0.7, second half"),
    ("tome, proportional 0.25", "tome 0.25"),
    ("tome, proportional 0.5", "tome 0.5"),
    ("tome, proportional 0.7", "tome 0.7"),
    ("tome, proportional 0.5", "todo, random 0.75"),
    ("tile 4, proportional 0.5", "tile 4, 0.5"),
    ("todo, random 0.75", "todo 0.75"),
    ("pool 0.75", "todo, random 0.75"),
    ("tile 16, 0.5", "tome 0.5"),
    ("tile 16, 0.74", "tome 0.74"),
    ("tile 4, 0.5", "tome 0.5"),
    ("tiles 0.5", "tile 16, 0.5"),
    ("tiles 0.74", "tile 16, 0.74"),
    ("reused 0.5", "tiles 0.5"),
    ("reused 0.74", "tiles 0.74"),
    ("tofu 0.5", "tome 0.5"),
    ("prune 0.5", "tome 0.5"),
)


def table(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """As lines of Markdown: a choice a row, a model a column."""
    models = {
        each["run"]["model"]: {row["configuration"]["name"]: row for row in each["configurations"]}
        for each in evaluations
    }
    head = " | ".join(f"{model}, dB" for model in models)
    lines = [f"| settings | less | {head} |", "|---|---|" + "---:|" * len(models)]
    for one, other in CHOICES:
        cells = [difference(rows, one, other) for rows in models.values()]
        lines.append(f"| {one} | {other} | {' | '.join(cells)} |")
    return lines


def difference(rows: Mapping[str, Mapping[str, Any]], one: str, other: str) -> str:
    """``+8.1 [+6.6, +9.8]``; a dash where the model was not evaluated with both."""
    if one not in rows or other not in rows:
        return "-"
    found = in_psnr(rows[one], rows[other])
    return with_interval(found.median, found.interval, MEASURES[PSNR])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluations", type=Path, nargs="+", help="evaluate.json of each model")
    args = parser.parse_args()
    print("\n".join(table([json.loads(path.read_text()) for path in args.evaluations])))


if __name__ == "__main__":
    main()
