"""Tables and pages of tables: printed by rich, written as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.files import write_json, write_text
from ppdiffusers_tome.tools.console.output import print_line


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
        """Print the table, in a pipe with one line a row."""
        from rich import box
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table as RichTable

        console = Console(markup=False, highlight=False)
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for number, heading in enumerate(self.headings):
            words = number < self.left
            lines = heading.replace(" ", "\n") if console.is_terminal else heading
            table.add_column(lines, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        width = Measurement.get(console, console.options.update(width=100_000), table)
        console.width = min(width.maximum, max(console.width, width.minimum)) if console.is_terminal else width.maximum
        with console.capture() as captured:
            console.print(table)
        print_line("\n".join(line.rstrip() for line in captured.get().splitlines()))


@dataclass(frozen=True)
class Page:
    """Tables with the notes that a reader needs to understand them."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table]

    def write(self, paths: Sequence[Path], content: Mapping[str, Any]) -> None:
        """Write Markdown and JSON to the last two paths; print everything."""
        notes = "\n".join(f"- {note}" for note in self.notes)
        markdown = "\n".join([f"# {self.title}\n", f"{notes}\n", *(table.markdown() for table in self.tables)])
        write_text(paths[-2], markdown, overwrite=True)
        write_json(paths[-1], content, overwrite=True)
        print_line("\n".join([self.title, "", *self.notes]))
        for table in self.tables:
            print_line("")
            table.print()
        print_line("\n".join(map(str, paths)))


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
