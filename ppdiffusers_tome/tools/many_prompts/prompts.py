"""Files of prompts: one picture a line, as text, CSV or JSON lines. Knows no Paddle.

Whatever a line says is checked before anything is drawn, and what cannot be used is reported with the number of its
line.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.many_prompts.line import FIELDS, BadLine, Line, line_of

ENDINGS = (".jsonl", ".csv", ".txt")

Values = Mapping[str, Any]
Entries = Iterator[tuple[int, Values | UserError]]  # with the numbers of the lines that they begin on, from 1


def read_prompts(
    path: Path, *, first_seed: int, tome: ToMeConfig, pictures_within: Path | None = None
) -> tuple[list[Line], list[BadLine]]:
    """Read a file of prompts.

    Args:
        path: ``.txt``: a prompt a line; ``.csv``: columns called as in ``FIELDS``, named in the first line; ``.jsonl``:
            an object a line with those keys. UTF-8. Everything but the prompt may be left out.
        first_seed: lines without a seed have ``first_seed + number - 1``.
        tome: the settings that a line's ratio must go with.
        pictures_within: a folder that must hold every picture that a line names; None lets a line name any that the
            user may read.

    Returns:
        What can be drawn, and what is wrong with the other lines, both in the order of the file.

    Raises:
        UserError: the file as a whole cannot be used.
    """
    lines: list[Line] = []
    bad: list[BadLine] = []
    names: dict[str, int] = {}
    for number, (at, values) in enumerate(_entries(path), start=1):
        try:
            if isinstance(values, UserError):
                raise values
            line = line_of(values, number, at, path.parent, first_seed=first_seed, tome=tome)
            line.check_control(pictures_within)
            _take_name(line, names)
        except ToMeError as error:
            bad.append(BadLine(at, " ".join(str(error).split())))
        else:
            lines.append(line)
    if not lines and not bad:
        raise UserError(f"--prompts {path} holds no prompt; write one a line")
    return lines, bad


def _entries(path: Path) -> Entries:
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UserError(f"--prompts {path} must end in one of {', '.join(ENDINGS)}, which says how to read it")
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise UserError(f"--prompts {path} cannot be read ({error.strerror}); give a file of prompts") from error
    if ending == ".csv":
        return _rows(path, content)
    return _parsed_lines(content, _json_object if ending == ".jsonl" else lambda text: {"prompt": text})


def _parsed_lines(content: bytes, parse: Callable[[str], Values | UserError]) -> Entries:
    """Lines that are not blank."""
    for at, line in enumerate(content.split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            yield at, UserError(f"it is no UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8")
            continue
        if text:
            yield at, parse(text)


def _json_object(text: str) -> Values | UserError:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("it names a key twice")
        return dict(pairs)

    try:
        values = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        return UserError(f'it is not JSON ({error}); write an object such as {{"prompt": "a star", "seed": 1}}')
    if not isinstance(values, dict):
        return UserError(f'it is {type(values).__name__}, no object; write one such as {{"prompt": "a star"}}')
    return {name: value for name, value in values.items() if value is not None}


def _rows(path: Path, content: bytes) -> Entries:
    """Rows of a CSV that are not blank."""
    # Bytes that are no UTF-8 become lone surrogates, which the line that holds them is refused for.
    rows = csv.reader(io.StringIO(content.decode("utf-8", "surrogateescape"), newline=""), strict=True)
    try:
        columns = [column.strip() for column in next(rows, [])]
    except csv.Error as error:
        raise UserError(f"--prompts {path} has no first line that names columns ({error})") from error
    if "prompt" not in columns or not set(columns) <= set(FIELDS) or len(set(columns)) < len(columns):
        raise UserError(
            f"--prompts {path} has columns {columns!r}; the first line must name a column 'prompt' and may name others "
            f"once each: {', '.join(FIELDS[1:])}"
        )
    while True:
        at = rows.line_num + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield at, UserError(f"it is no CSV ({error}); close every quotation mark")
            continue
        if len(cells) > len(columns):
            yield at, UserError(f"it has {len(cells)} cells for {len(columns)} columns; quote cells with commas")
        elif any(cell.strip() for cell in cells):
            yield at, {name: cell for name, cell in zip(columns, cells, strict=False) if cell.strip()}


def _take_name(line: Line, names: dict[str, int]) -> None:
    """No two lines write one file, also where the file system does not tell capitals."""
    key = unicodedata.normalize("NFC", line.file).casefold()
    if key in names:
        raise UserError(f"output {line.file!r} is that of line {names[key]} already; give each line its own")
    names[key] = line.line
