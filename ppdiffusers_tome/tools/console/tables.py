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
    paths: Sequence[Path], title: str, notes: Sequence[str], table: Table, content: Mapping[str, Any]
) -> None:
    """Write a table with notes, as Markdown and JSON, and print all.

    The last two paths are those of Markdown and of JSON, which gets the content. Infinity, as of the PSNR of identical
    images, is null in JSON, which lacks it.
    """
    write_text(paths[-2], "\n".join([f"# {title}\n", *(f"- {note}" for note in notes), "", table.markdown()]))
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_text(paths[-1], json.dumps(finite, indent=2) + "\n")
    print_line("\n".join([title, "", *notes, ""]))
    table.print()
    print_line("\n".join(map(str, paths)))


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
