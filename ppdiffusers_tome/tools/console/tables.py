"""Tables and pages of tables: printed by rich, written as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.console.output import print_line


class Table:
    """Rows under headings.

    Args:
        headings: of the columns; "" for none.
        rows: the first rows; cells are written with ``str``.
        left: number of columns, from the first, that hold words and align left; the others hold numbers.
    """

    def __init__(self, headings: Sequence[str], rows: Iterable[Sequence[object]] = (), *, left: int = 1) -> None:
        self.headings, self.left = tuple(headings), left
        self.rows: list[tuple[str, ...]] = []
        for row in rows:
            self.add(*row)

    def add(self, *cells: object) -> None:
        """Add a row, with one cell for each heading."""
        if len(cells) != len(self.headings):
            raise ValueError(f"a row of {len(cells)} cells does not fit {len(self.headings)} headings")
        self.rows.append(tuple(map(str, cells)))

    def markdown(self) -> str:
        """Return the table in Markdown, ending with a line break."""
        rules = ["---" if number < self.left else "---:" for number in range(len(self.headings))]
        lines = [_format_row(self.headings), f"|{'|'.join(rules)}|", *map(_format_row, self.rows)]
        return "\n".join(lines) + "\n"

    def print(self) -> None:
        """Print the table, in a pipe with one line a row."""
        from rich.console import Console
        from rich.measure import Measurement

        console = Console(markup=False, highlight=False)
        wide, table = console.options.update(width=100_000), self._make_rich_table(self.headings)
        width = Measurement.get(console, wide, table).maximum
        if console.is_terminal and width > console.width:
            table = self._make_rich_table([heading.replace(" ", "\n") for heading in self.headings])
            width = max(console.width, Measurement.get(console, wide, table).minimum)
        with console.capture() as captured:
            console.width = width
            console.print(table)
        print_line("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def _make_rich_table(self, headings: Iterable[str]) -> Any:
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for number, heading in enumerate(headings):
            words = number < self.left
            table.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(frozen=True)
class Page:
    """Tables with the notes that a reader needs to understand them."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table]

    def markdown(self) -> str:
        """Return the page in Markdown."""
        head = [f"# {self.title}", "", *(f"- {note}" for note in self.notes), ""]
        return "\n".join([*head, *(table.markdown() for table in self.tables)])

    def print(self, files: Iterable[Path]) -> None:
        """Print the page and the paths of its files, which must be written before."""
        print_line("\n".join([self.title, "", *self.notes, ""]))
        for number, table in enumerate(self.tables):
            if number:
                print_line("")
            table.print()
        for file in files:
            print_line(str(file))


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
