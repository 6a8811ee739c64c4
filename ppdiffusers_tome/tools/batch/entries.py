"""What the lines of a file of prompts say, as text, CSV or JSON lines, before it is checked. Knows no Paddle."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.encodings import how_to_convert

_MARK = "\ufeff"  # which files that were put together have at the beginning of each

Values = Mapping[str, Any]
Entry = tuple[int, Values | UserError]  # with the number of the line that it begins on
Entries = Sequence[Entry]


def parsed_lines(
    file: BinaryIO, taken: list[bytes], first: int, parse: Callable[[str], Values | UserError]
) -> Iterator[Entry]:
    """Lines that are not blank.

    Args:
        file: at the beginning of a line.
        taken: gets every line that is read, blank ones too.
        first: the number of the first line.
        parse: what a line's text says.
    """
    for at, line in enumerate(file, start=first):
        taken.append(line)
        try:
            text = line.decode().lstrip(_MARK).strip()
        except UnicodeDecodeError as error:
            yield at, UserError(f"it is not UTF-8 ({error.reason} at byte {error.start}); {how_to_convert(line)}")
            continue
        if text:
            yield at, parse(text)


def prompt_of(text: str) -> Values:
    """A line that is a prompt."""
    return {"prompt": text}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it names a key twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def json_object(text: str) -> Values | UserError:
    """A line that is a JSON object; what is null is left out."""
    try:
        values, end = _DECODER.raw_decode(text)
        if end < len(text):
            raise ValueError(f"something follows it at character {end + 1}")
    except (ValueError, RecursionError) as error:
        return UserError(f'it is not JSON ({error}); write an object such as {{"prompt": "a star", "seed": 1}}')
    if not isinstance(values, dict):
        return UserError(f'it is {type(values).__name__}, not an object; write one such as {{"prompt": "a star"}}')
    return values if None not in values.values() else _without_nulls(values)


def _without_nulls(values: Values) -> Values:
    return {name: value for name, value in values.items() if value is not None}


def rows_of(lines: Iterable[bytes], first: int, columns: list[str]) -> Iterator[Entry]:
    """Rows of a CSV that are not blank, from the line of that number on."""
    rows, at = reader(lines), first
    while True:
        row: Values | UserError
        try:
            cells = next(rows)
            if len(cells) > len(columns):
                row = UserError(f"it has {len(cells)} cells for {len(columns)} columns; quote cells with commas")
            else:
                row = {name: cell for name, cell in zip(columns, cells, strict=False) if cell.strip()}
        except StopIteration:
            return
        except csv.Error as error:
            row = UserError(f"it is not CSV ({error}); close every quotation mark")
        if row:
            yield at, row
        at = first + rows.line_num


def universal_lines(file: BinaryIO, taken: list[bytes]) -> Iterator[bytes]:
    """Lines as CSV has them: a carriage return alone ends one too. ``taken`` gets each as it is read."""
    for line in file:
        parts = line.splitlines(keepends=True) if b"\r" in line else (line,)
        for part in parts:
            taken.append(part)
            yield part


def reader(lines: Iterable[bytes]) -> Any:
    """Python's reader of CSV."""
    # Bytes that are no UTF-8 become lone surrogates, which the line that holds them is refused for.
    return csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)
