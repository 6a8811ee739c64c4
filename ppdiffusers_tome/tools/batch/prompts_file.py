"""Files of prompts: text, tables and JSON lines. Imports no Paddle."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError, UserError
from ppdiffusers_tome.settings.text import did_you_mean, format_count, shorten_repr
from ppdiffusers_tome.tools.console.output import warn
from ppdiffusers_tome.tools.text_files import doubt_encoding, read_text

FIELDS = ("prompt", "negative_prompt", "seed", "height", "width", "ratio", "image", "control_image", "output")
ENDINGS = (".jsonl", ".csv", ".tsv", ".txt")
_SEPARATORS = ",\t;"

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
    try:
        text = read_text(path)
    except ToMeValueError as error:
        raise UserError(f"--prompts {error}; give a file of prompts") from error
    text = text.replace("\ufeff", "")  # which files that were put together have between them
    if ending == ".txt":
        _check_name(path, text)
    if doubt := doubt_encoding(text):
        warn(f"--prompts {path} {doubt}")
    if ending in (".csv", ".tsv"):
        return list(_read_table(path, text))
    entries = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if ending == ".txt":
        return [(number, {"prompt": line}) for number, line in entries]
    return [(number, _parse_object(line)) for number, line in entries]


def check_names(values: Mapping[str, Any]) -> None:
    """Raise a ``UserError`` for a key that a line may not have."""
    unknown = next((name for name in values if name not in FIELDS), None)
    if unknown is not None:
        suggestion = did_you_mean(unknown, FIELDS) or f"; known are {', '.join(FIELDS)}"
        raise UserError(f"{shorten_repr(unknown)} is not known{suggestion}")


def _check_name(path: Path, text: str) -> None:
    """Refuse a table or JSON whose name is that of text."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(first), dict | list):
            raise UserError(f"--prompts {path} holds JSON, not a prompt a line; rename it to end in .jsonl")
    for separator in _SEPARATORS:
        names = [cell.strip(' "').lower() for cell in first.split(separator)]
        if "prompt" in names and (len(names) > 1 or first.strip() == "prompt"):
            raise UserError(f"--prompts {path} begins like a table, {shorten_repr(first)}; rename it to end in .csv")


def _read_table(path: Path, text: str) -> Iterator[Entry]:
    separator, columns = _read_header(path, text)
    rows = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    while not any(map(str.strip, next(rows))):  # up to the names of the columns
        pass
    while True:
        line = rows.line_num + 1
        try:
            cells = next(rows, None)
        except csv.Error as error:
            fault = f"it cannot be read as a row ({error}); close every quotation mark, and shorten long cells"
            yield line, UserError(fault)
            continue
        if cells is None:
            return
        if len(cells) > len(columns):
            number = format_count(len(columns), "column")
            yield line, UserError(f"it has {len(cells)} cells for {number}; quote cells that hold {separator!r}")
        elif row := {name: cell for name, cell in zip(columns, cells, strict=False) if name in FIELDS and cell.strip()}:
            yield line, row


def _read_header(path: Path, text: str) -> tuple[str, list[str]]:
    """Find the separator that gives a column ``prompt``, and all names."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    for separator in _SEPARATORS:
        names: list[str] = []
        with suppress(csv.Error):  # such as of an open quotation mark
            cells = next(csv.reader([first[:10_000]], delimiter=separator, strict=True))
            names = [cell.strip().lower().replace(" ", "_").replace("-", "_") for cell in cells]
        if "prompt" in names:
            break
    else:
        raise UserError(
            f"--prompts {path} begins with {shorten_repr(first)}; the first line of a table must name its columns, "
            f"separated by commas, semicolons or tabs: 'prompt' and any of {', '.join(FIELDS[1:])}"
        )
    for name in names:
        if name in FIELDS and names.count(name) > 1:
            raise UserError(f"--prompts {path} has two columns {name!r}; name every column once")
        if name not in FIELDS and (suggestion := did_you_mean(name, set(FIELDS) - set(names))):
            raise UserError(f"--prompts {path} has a column {shorten_repr(name)}, which is not known{suggestion}")
    if unknown := [name for name in names if name and name not in FIELDS]:
        warn(f"--prompts {path}: columns that are not used: {shorten_repr(', '.join(unknown))}")
    return separator, names


def _parse_object(line: str) -> dict[str, Any] | UserError:
    """Read a line of JSON; keys that are null are omitted."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return UserError(f'it is not JSON ({error}); write an object such as {{"prompt": "a star", "seed": 1}}')
    if not isinstance(values, dict):
        return UserError(f'it is {type(values).__name__}, not an object; write one such as {{"prompt": "a star"}}')
    return {name: value for name, value in values.items() if value is not None}
