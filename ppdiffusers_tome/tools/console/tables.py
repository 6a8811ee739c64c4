"""Tables and their pages: printed, and written as Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.console.output import print_line
from ppdiffusers_tome.tools.files import write_text


class Table:
    """Rows under headings, of which the ``left`` first columns hold words."""

    def __init__(self, headings: Sequence[str], rows: Iterable[Sequence[object]] = (), *, left: int = 1) -> None:
        self.headings, self.left = tuple(headings), left
        self.rows = [tuple(map(str, row)) for row in rows]

    def add(self, *cells: object) -> None:
        """Add a row, with one cell for each heading."""
        self.rows.append(tuple(map(str, cells)))

    def markdown(self) -> str:
        """Return the table in Markdown, ending with a line break."""
        rules = ["---" if number < self.left else "---:" for number in range(len(self.headings))]
        lines = [_format_row(self.headings), f"|{'|'.join(rules)}|", *map(_format_row, self.rows)]
        return "\n".join(lines) + "\n"

    def print(self) -> None:
        """Print the table with aligned columns, one line a row."""
        rows = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [
                cell.ljust(width) if number < self.left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print_line("  ".join(cells).rstrip())


def write_page(
    page_path: Path, json_path: Path, title: str, notes: Sequence[str], table: Table, content: Mapping[str, Any], *,
    other_paths: Sequence[Path] = (),
) -> None:  # fmt: skip
    """Write a page of a table in Markdown, and content as JSON; print all.

    Other paths are printed, too. Infinity, as of the PSNR of identical images, is null in JSON, which lacks it.
    """
    write_text(page_path, "\n".join([f"# {title}\n", *(f"- {note}" for note in notes), "", table.markdown()]))
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_text(json_path, json.dumps(finite, indent=2) + "\n")
    print_line("\n".join([title, "", *notes, ""]))
    table.print()
    print_line("\n".join(map(str, (*other_paths, page_path, json_path))))


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
