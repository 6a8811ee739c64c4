"""Files of prompts: text, tables and JSON lines. Imports no Paddle."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr
from ppdiffusers_tome.tools.console.output import warn

FIELDS = ("prompt", "negative_prompt", "seed", "height", "width", "ratio", "image", "control_image", "output")
ENDINGS = (".jsonl", ".csv", ".tsv", ".txt")

Entry = tuple[int, dict[str, Any] | UserError]  # with its first line, from 1


def read_entries(path: Path, *, may_have_any_name: bool = False) -> list[Entry]:
    """Read what a file of prompts asks for, blank lines omitted.

    Args:
        path: ``.txt`` (one prompt per line), ``.csv`` or ``.tsv`` (columns named as in ``FIELDS`` by the first line),
            or ``.jsonl`` (one object per line).
        may_have_any_name: read a file of another ending as ``.txt``.

    Returns:
        The values of every entry, or what is wrong with it.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS and may_have_any_name:
        ending = ".txt"
    if ending not in ENDINGS:
        raise UserError(f"--prompts {path} must end in one of {', '.join(ENDINGS)}, which says how to read it")
    lines = _read_lines(path)
    if ending in (".csv", ".tsv"):
        return list(_read_table(path, lines))
    entries = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if ending == ".txt":
        return [(number, {"prompt": line}) for number, line in entries]
    return [(number, _parse_object(line)) for number, line in entries]


def check_names(values: Mapping[str, Any]) -> None:
    """Raise a ``UserError`` for a key that a line may not have."""
    unknown = next((name for name in values if name not in FIELDS), None)
    if unknown is not None:
        suggestion = did_you_mean(unknown, FIELDS) or f"; known are {', '.join(FIELDS)}"
        raise UserError(f"{shorten_repr(unknown)} is not known{suggestion}")


def _read_lines(path: Path) -> list[str]:
    """Read a text file in UTF-8, UTF-16 or UTF-32, with any line ends."""
    try:
        content = path.read_bytes()
        encoding = json.detect_encoding(content)
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--prompts {path} is not text in {encoding.upper()}; save it as UTF-8, a workbook of Excel as CSV, or "
            "convert it, such as Chinese text of Windows (GBK) with iconv -f GB18030 -t UTF-8 OLD > NEW"
        ) from error
    except OSError as error:
        raise UserError(f"--prompts {path} cannot be read ({error.strerror}); give a file of prompts") from error


def _read_table(path: Path, lines: list[str]) -> Iterator[Entry]:
    first, *others = lines
    separator = max(",\t;", key=first.count)
    columns = _check_columns(path, next(csv.reader([first], delimiter=separator), []))
    rows = csv.DictReader((f"{line}\n" for line in others), columns, delimiter=separator, strict=True)
    while True:
        line = rows.line_num + 2
        try:
            row = next(rows, None)
        except csv.Error as error:
            fault = f"it cannot be read as a row ({error}); close every quotation mark, and shorten long cells"
            yield line, UserError(fault)
            continue
        if row is None:
            return
        if None in row:  # DictReader's key of cells without a column
            fault = f"it has more cells than the {len(columns)} columns; quote cells that hold {separator!r}"
            yield line, UserError(fault)
        elif values := {name: cell for name, cell in row.items() if name in FIELDS and cell and cell.strip()}:
            yield line, values


def _check_columns(path: Path, columns: Sequence[str]) -> list[str]:
    """Return the names of a table's columns as in ``FIELDS``."""
    names = [name.strip().lower().replace(" ", "_").replace("-", "_") for name in columns]
    if names.count("prompt") != 1:
        raise UserError(
            f"--prompts {path} begins with {shorten_repr(','.join(columns))}; the first line of a table must name its "
            f"columns, separated by commas, semicolons or tabs: 'prompt' and any of {', '.join(FIELDS[1:])}"
        )
    for name in names:
        if name not in FIELDS and (suggestion := did_you_mean(name, set(FIELDS) - set(names))):
            raise UserError(f"--prompts {path} has a column {shorten_repr(name)}, which is not known{suggestion}")
    if unknown := [name for name in names if name and name not in FIELDS]:
        warn(f"--prompts {path}: columns that are not used: {shorten_repr(', '.join(unknown))}")
    return names


def _parse_object(line: str) -> dict[str, Any] | UserError:
    """Read a line of JSON; keys that are null are omitted."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return UserError(f'it is not JSON ({error}); write an object such as {{"prompt": "a star", "seed": 1}}')
    if not isinstance(values, dict):
        return UserError(f'it is {type(values).__name__}, not an object; write one such as {{"prompt": "a star"}}')
    return {name: value for name, value in values.items() if value is not None}
