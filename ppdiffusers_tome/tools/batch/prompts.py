"""Files of prompts: one picture per line, as text, CSV or JSON lines. Knows no Paddle.

A file may have any number of lines, so it is taken a piece at a time: ``PromptsFile.piece`` finds where one ends, and
``lines_of`` makes lines of its bytes. Whatever a line says is checked, and what cannot be used is reported with the
number of its line.
"""

from __future__ import annotations

import csv
import io
import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.batch.encodings import how_to_convert, other_encoding, what_is_wrong
from ppdiffusers_tome.tools.batch.entries import (
    Entries,
    json_object,
    parsed_lines,
    prompt_of,
    reader,
    rows_of,
    universal_lines,
)
from ppdiffusers_tome.tools.batch.line import FIELDS, BadLine, Line, line_of
from ppdiffusers_tome.tools.batch.run import Run

ENDINGS = (".jsonl", ".csv", ".txt")
_BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 4096  # bytes that tell the encoding


@dataclass(frozen=True)
class Piece:
    """Whole lines of a file of prompts.

    Attributes:
        content: their bytes.
        lines: how many they are.
        entries: what they ask for, bad lines included; blank lines do not count.
    """

    content: bytes
    lines: int
    entries: Entries


class PromptsFile:
    """A file of prompts.

    Args:
        path: ``.txt``: one prompt per line; ``.csv``: columns called as in ``FIELDS``, named in the first line;
            ``.jsonl``: one object per line with those keys. UTF-8. Everything but the prompt may be left out.

    Attributes:
        columns: what the first line of a CSV names; nothing elsewhere.
        offset, line: the byte and the line where entries begin.

    Raises:
        UserError: the file as a whole cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._ending = path, path.suffix.lower()
        self.columns: list[str] = []
        self.line = 1
        if self._ending not in ENDINGS:
            raise UserError(f"--prompts {path} must end in one of {', '.join(ENDINGS)}, which says how to read it")
        with self._opened(0) as file:
            begins = file.read(_LOOKED_AT)
            if (other := other_encoding(begins)) is not None:
                raise UserError(f"--prompts {path} is not UTF-8; {other}")
            self.offset = len(_BOM) if begins.startswith(_BOM) else 0
            if self._ending == ".csv":
                file.seek(self.offset)
                self._read_columns(file)

    def read(self, offset: int, length: int) -> bytes:
        """So many bytes, or as many as there are."""
        with self._opened(offset) as file:
            return file.read(min(length, os.fstat(file.fileno()).st_size))

    def piece(self, offset: int, line: int, most: int) -> Piece:
        """The lines from that byte, where that line begins, as far as the end of the ``most``-th entry or the file."""
        with self._opened(offset) as file:
            return self._piece(file, line, most)

    def entries(self, content: bytes, line: int) -> Entries:
        """What a piece asks for; its first line has that number in the file."""
        return self._piece(io.BytesIO(content), line, None).entries

    def _piece(self, file: BinaryIO, line: int, most: int | None) -> Piece:
        taken: list[bytes] = []
        if self._ending == ".csv":
            found = rows_of(universal_lines(file, taken), line, self.columns)
        else:
            found = parsed_lines(file, taken, line, json_object if self._ending == ".jsonl" else prompt_of)
        entries = list(islice(found, most))
        return Piece(b"".join(taken), len(taken), entries)

    def _read_columns(self, file: BinaryIO) -> None:
        taken: list[bytes] = []
        rows = reader(universal_lines(file, taken))
        try:
            columns = [column.strip() for column in next(rows, [])]
        except csv.Error as error:
            raise UserError(f"--prompts {self.path} has no first line that names columns ({error})") from error
        try:
            wrong = what_is_wrong(b"".join(taken).decode())
        except UnicodeDecodeError as error:
            wrong = f"is not UTF-8; {how_to_convert(error.object)}"
        if wrong is not None:
            raise UserError(f"--prompts {self.path} {wrong}")
        if "prompt" not in columns or not set(columns) <= set(FIELDS) or len(set(columns)) < len(columns):
            raise UserError(
                f"--prompts {self.path} has columns {truncated_repr(columns)}; the first line must name a column "
                f"'prompt' and may name others once each: {', '.join(FIELDS[1:])}"
            )
        self.columns, self.line = columns, rows.line_num + 1
        self.offset += sum(map(len, taken))

    def _opened(self, offset: int) -> BinaryIO:
        try:
            file = self.path.open("rb")
            file.seek(offset)
        except OSError as error:
            raise UserError(
                f"--prompts {self.path} cannot be read ({error.strerror}); give a file of prompts"
            ) from error
        return file


def lines_of(run: Run, entries: Entries, number: int) -> tuple[list[Line], list[BadLine]]:
    """Check what a piece of a file of prompts says.

    Args:
        run: says what lines are checked with.
        entries: of the piece.
        number: of the first of them.

    Returns:
        What can be drawn, and what is wrong with the others, both in the order of the file.
    """
    lines: list[Line] = []
    bad: list[BadLine] = []
    folder = run.prompts.parent
    for each, (at, values) in enumerate(entries, start=number):
        again = False
        try:
            if isinstance(values, UserError):
                raise values
            line = line_of(values, each, at, folder, first_seed=run.first_seed, tome=run.tome)
            if line.control is not None:
                again = True
                line.check_control(run.image_root)
        except ToMeError as error:
            bad.append(BadLine(each, at, " ".join(str(error).split()), again))
        else:
            lines.append(line)
    if any(line.output is not None for line in lines):  # numbers make the other names differ
        lines, doubled = _each_its_own_name(lines)
        bad = sorted([*bad, *doubled], key=lambda each: each.number)
    return lines, bad


def _each_its_own_name(lines: Iterable[Line]) -> tuple[list[Line], list[BadLine]]:
    """No two lines write one file, also where the file system does not tell capitals."""
    names: dict[str, Line] = {}
    bad = []
    for line in lines:
        first = names.setdefault(unicodedata.normalize("NFC", line.file).casefold(), line)
        if first is not line:
            error = f"output {line.file!r} is that of line {first.line} already; give each line its own"
            bad.append(BadLine(line.number, line.line, error, again=False))
    return list(names.values()), bad
