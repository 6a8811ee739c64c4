"""Write the tables of docs/measured/fidelity/README.md as CSV.

    python docs/measured/tables.py docs/measured/fidelity

It reads the evaluations in the folder, ``compare.json`` under the model's name, and writes next to them

- ``settings.csv``, ``tiles.csv``, ``steps.csv``: speed-ups and PSNR of every setting;
- ``goals-MODEL.csv``: the best of this package at each speed, compared with plain ToMe and ToDo;
- ``choices.csv``: the gain of one choice over another, image by image;
- ``presets.csv``: the candidates for the presets.

Run it from the repository, with the package installed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import choices
import choose_presets
import frontier

NAMES = ("photographs", "dit", "photographs-tiles", "photographs-steps")


def make_tables(folder: Path) -> dict[str, str]:
    """Return the content of each CSV file by its name."""
    paths = [folder / f"{name}.json" for name in NAMES]
    evaluations = [frontier.read_evaluation(path) for path in paths]
    results = [json.loads(path.read_text()) for path in paths]
    return {
        "settings.csv": to_csv(frontier.make_table(evaluations[:2])),
        "tiles.csv": to_csv(frontier.make_table(evaluations[2:3])),
        "steps.csv": to_csv(frontier.make_table(evaluations[3:])),
        **{f"goals-{model}.csv": to_csv(frontier.compare_goals(points)) for model, points in evaluations[:2]},
        "choices.csv": to_csv(choices.make_table(results)),
        "presets.csv": to_csv(choose_presets.make_table(choose_presets.find_candidates(results[:2]))),
    }


def to_csv(lines: Iterable[str]) -> str:
    """Turn the rows of a Markdown table into CSV; other lines are omitted."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in lines:
        if line.startswith("|") and not line.startswith("|---"):
            writer.writerow(cell.strip() for cell in line.strip("|").split("|"))
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the evaluations, which gets the tables")
    args = parser.parse_args()
    for name, content in make_tables(args.folder).items():
        (args.folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
