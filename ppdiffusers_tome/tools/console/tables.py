"""Tables: on a terminal as rich draws them, in a file as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ppdiffusers_tome.tools.console.output import print_line


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

        table, needed = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False), 0
        for number, heading in enumerate(self.headings):
            words = number < self.left
            unbroken = heading.split()
            for row in self.rows:
                unbroken += row[number].split() if words else [row[number]]
            least = max(map(len, unbroken), default=1)
            needed += least + 3  # with what stands between columns
            table.add_column(heading, justify="left" if words else "right", min_width=least, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console = Console(markup=False, highlight=False)
        # In a file or pipe a row is a line. On a terminal lines break between words, and nothing is lost.
        console.width = max(console.width, needed) if console.is_terminal else 100_000
        with console.capture() as captured:
            console.print(table)
        print_line("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
