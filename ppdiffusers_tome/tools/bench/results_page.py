"""The page of results: what ``bench results`` found on one machine or several, side by side.

    python -m ppdiffusers_tome.tools.bench.results_page docs/en/results/index.md

draws the page's table and its plot, ``docs/images/results.png``, from the files of results in ``docs/measured/``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ppdiffusers_tome.tools.bench.marked_page import write_between
from ppdiffusers_tome.tools.bench.results_table import Machine, notes, table

BEGIN, END = (
    "<!-- what follows is made by ppdiffusers_tome.tools.bench.results_page -->",
    "<!-- what ppdiffusers_tome.tools.bench.results_page makes ends here -->",
)


def page(machines: Sequence[Machine]) -> str:
    """What stands in the page between ``BEGIN`` and ``END``."""
    if not machines:
        return "Not measured yet."
    head = ["![Speed-up over unmerged](../../images/results.png)", "", table(machines).markdown()]
    return "\n".join([*head, *(f"- {note}" for note in notes(machines))])


def read(path: Path) -> list[Machine]:
    """The results that a page is made of, in the order of their files' names."""
    files = sorted((_docs(path) / "measured").glob("*.json"))
    return [Machine(json.loads(file.read_text(encoding="utf-8"))) for file in files]


def _docs(page: Path) -> Path:
    """The folder ``docs`` of a page that is ``docs/LANGUAGE/SECTION/PAGE``."""
    return page.resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> None:
    from ppdiffusers_tome.tools.bench.results_plot import plot
    from ppdiffusers_tome.tools.images import write_image

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="such as docs/en/results/index.md")
    path: Path = parser.parse_args(arguments).page
    machines = read(path)
    write_between(path, BEGIN, END, page(machines))
    if machines:
        picture = _docs(path) / "images" / "results.png"
        shown = {"machines": [machine.found for machine in machines]}
        write_image(picture, plot(machines), shown, overwrite=True)


if __name__ == "__main__":
    main()
