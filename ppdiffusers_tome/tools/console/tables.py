"""Tables and pages of tables: printed, and written as Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Page:
    """Tables with the notes that a reader needs to understand them."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table]

    def write(self, paths: Sequence[Path], content: Mapping[str, Any]) -> None:
        """Write Markdown and JSON to the last two paths; print everything.

        Infinity, as of the PSNR of identical images, is null in JSON, which lacks it.
        """
        notes = "\n".join(f"- {note}" for note in self.notes)
        markdown = "\n".join([f"# {self.title}\n", f"{notes}\n", *(table.markdown() for table in self.tables)])
        write_text(paths[-2], markdown)
        finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
        write_text(paths[-1], json.dumps(finite, indent=2) + "\n")
        print_line("\n".join([self.title, "", *self.notes]))
        for table in self.tables:
            print_line("")
            table.print()
        print_line("\n".join(map(str, paths)))


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
