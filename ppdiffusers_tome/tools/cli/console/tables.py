"""Tables: on a terminal as rich draws them, in a file as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdiffusers_tome.tools.cli.console.output import print_line


class Table:
    """Rows under headings.

    Args:
        headings: of the columns; "" for none.
        rows: the first of them; cells are written with ``str``.
        left: how many columns, from the first, hold words and stand on the left; the others hold numbers, on the right.
    """

    def __init__(self, headings: Sequence[str], rows: Iterable[Sequence[object]] = (), *, left: int = 1) -> None:
        self.headings, self.left = tuple(headings), left
        self.rows: list[tuple[str, ...]] = []
        for row in rows:
            self.add(*row)

    def add(self, *cells: object) -> None:
        """Add a row, a cell for each heading.

        Raises:
            ValueError: there are more or fewer.
        """
        if len(cells) != len(self.headings):
            raise ValueError(f"a row of {len(cells)} cells does not fit {len(self.headings)} headings")
        self.rows.append(tuple(map(str, cells)))

    def markdown(self) -> str:
        """The table in Markdown, ending with a line break."""
        rules = ["---" if number < self.left else "---:" for number in range(len(self.headings))]
        lines = [_line(self.headings), f"|{'|'.join(rules)}|", *map(_line, self.rows)]
        return "\n".join(lines) + "\n"

    def print(self) -> None:
        """Write the table to standard output; where the terminal is too narrow for it, the terminal breaks lines."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable

        console = Console(markup=False, highlight=False)
        widths: list[int | None] = [None] * len(self.headings)
        if console.is_terminal:
            widths = [*self._widths(console.width)]
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for number, (heading, width) in enumerate(zip(self.headings, widths, strict=True)):
            table.add_column(heading, justify="left" if number < self.left else "right", width=width)
        for row in self.rows:
            table.add_row(*row)
        console.width = 100_000  # of no consequence on a terminal; in a file or pipe a row is a line
        with console.capture() as captured:
            console.print(table)
        print_line("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def _widths(self, available: int) -> list[int]:
        """Of the columns on a terminal: lines break between words, and no number or word is broken."""
        columns = [[row[number] for row in self.rows] for number in range(len(self.headings))]
        least, wanted = [], []
        for number, (heading, cells) in enumerate(zip(self.headings, columns, strict=True)):
            unbroken = [part for cell in cells for part in (cell.split() if number < self.left else [cell])]
            least.append(max(map(len, [*heading.split(), *unbroken]), default=1))
            wanted.append(max(map(len, [*heading.split(), *cells]), default=1) if number < self.left else least[-1])
        left = available - sum(least) - 3 * len(least)
        for number in range(len(least)):  # what is left goes to words, from the first column on
            more = max(0, min(left, wanted[number] - least[number]))
            least[number] += more
            left -= more
        return least


@dataclass(frozen=True)
class Page:
    """Tables with what a reader must know to understand them."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table]

    def markdown(self) -> str:
        """The page in Markdown."""
        head = [f"# {self.title}", "", *(f"- {note}" for note in self.notes), ""]
        return "\n".join([*head, *(table.markdown() for table in self.tables)])

    def print(self, files: Iterable[Path]) -> None:
        """Print it, and the paths of files that hold it: last of all, as whoever reads the output may be gone."""
        print_line("\n".join([self.title, "", *self.notes, ""]))
        for number, table in enumerate(self.tables):
            if number:
                print_line("")
            table.print()
        for file in files:
            print_line(str(file))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
