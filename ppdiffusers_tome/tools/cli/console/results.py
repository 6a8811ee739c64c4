"""Results: a page of tables, on the terminal and as files that are written whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.cli.console.output import print_line
from ppdiffusers_tome.tools.cli.console.tables import Table
from ppdiffusers_tome.tools.files import write_whole


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

    def show(self, files: Iterable[Path]) -> None:
        """Print it, and the paths of files that hold it: last of all, as whoever reads the output may be gone."""
        print_line("\n".join([self.title, "", *self.notes, ""]))
        for number, table in enumerate(self.tables):
            if number:
                print_line("")
            table.print()
        for file in files:
            print_line(str(file))


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a text file whole or not at all.

    Raises:
        UserError: the file exists and must not be replaced, or cannot be written.
    """
    write_whole(path, lambda file: file.write(text.encode()), overwrite=overwrite)


def write_json(path: Path, content: Any, *, overwrite: bool) -> None:
    """Write plain values as JSON, as ``write_text`` does; nan and infinity, which JSON does not know, are errors."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", overwrite=overwrite)
