"""Files of prompts: one picture a line, as text, CSV or JSON lines. Knows no Paddle.

Nothing in such a file is trusted: whatever a line says is checked before anything is drawn, and what cannot be used is
told with the number of its line.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import json
import math
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.drawing.picture_files import slug

FIELDS = ("prompt", "negative_prompt", "seed", "height", "width", "ratio", "image", "control_image", "output")
ENDINGS = (".jsonl", ".csv", ".txt")
MAX_SEED = 2**62
SIZE_MULTIPLE = 8
STOP, SKIP = "stop", "skip"  # what follows a line that cannot be drawn
# What a file system takes is mostly 255 bytes; the rest is for the temporary name while the file is written.
_MAX_NAME_BYTES = 200
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_WINDOWS_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One picture that is asked for.

    Attributes:
        number: which entry of the file it is, from 1; blank lines and a CSV's header do not count, bad lines do.
        line: the line of the file that it begins on, from 1.
        file: the picture's name in the output folder.
        prompt: what to draw.
        negative_prompt: what not to; None for that of the command line.
        seed: of the picture.
        height, width: in pixels; None for those of the command line, or the model's native size.
        ratio: share of the tokens to merge; None for that of the command line.
        image, control_image: a photo, or edges, at most one of them, relative to the prompts' folder; None for that of
            the command line.
        folder: where the file of prompts is.
    """

    number: int
    line: int
    file: str
    prompt: str
    negative_prompt: str | None
    seed: int
    height: int | None
    width: int | None
    ratio: float | None
    image: str | None
    control_image: str | None
    folder: Path

    @property
    def control(self) -> Path | None:
        """The picture of its own that guides it."""
        named = self.image if self.image is not None else self.control_image
        return None if named is None else self.folder / named

    @property
    def asked(self) -> str:
        """A checksum of all that the line asks for, so that a changed line is noticed."""
        asked = [
            self.file, self.prompt, self.negative_prompt, self.seed, self.height, self.width, self.ratio, self.image,
            self.control_image,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be used: where it begins, from 1, and what is wrong with it."""

    line: int
    error: str


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
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UserError(f"--prompts {path} must end in one of {', '.join(ENDINGS)}, which says how to read it")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"--prompts {path} cannot be read ({error.strerror}); give a file of prompts") from error
    content = content.removeprefix(b"\xef\xbb\xbf")
    entries = {".jsonl": _json_entries, ".csv": _csv_entries, ".txt": _text_entries}[ending](path, content)
    lines: list[Line] = []
    bad: list[BadLine] = []
    taken: dict[str, int] = {}
    for number, (at, values) in enumerate(entries, start=1):
        try:
            if isinstance(values, ValueError):
                raise values
            line = _line(values, number, at, path.parent, first_seed, tome)
            _check_control(line, pictures_within)
            _take_name(line, taken)
        except ValueError as error:
            bad.append(BadLine(at, " ".join(str(error).split())))
        else:
            lines.append(line)
    if not lines and not bad:
        raise UserError(f"--prompts {path} holds no prompt; write one a line")
    return lines, bad


def check_file_name(name: str) -> None:
    """Make sure that a picture of that name lies in the output folder itself, on every file system.

    Raises:
        ValueError: it would not; the message says what is accepted.
    """
    remedy = "give the name of a file alone, such as star.png"
    if _FORBIDDEN.search(name):
        raise ValueError(f'output {name!r} holds one of <>:"/\\|?* or a control character; {remedy}')
    if name.startswith(".") or name != name.strip() or _WINDOWS_DEVICES.match(name):
        raise ValueError(f"output {name!r} is a hidden or reserved name, or begins or ends with a space; {remedy}")
    if not name.lower().endswith(".png"):
        raise ValueError(f"output {name!r} does not end in .png, as all pictures are; {remedy}")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"output {name[:40]!r}... has more than {_MAX_NAME_BYTES} bytes; {remedy}")


def check_within(picture: Path, folder: Path) -> None:
    """Make sure that a picture lies in a folder, or below it, when all links are followed and all ``..`` are gone.

    Raises:
        ValueError: it does not.
    """
    try:
        inside = Path(os.path.realpath(picture)).is_relative_to(os.path.realpath(folder))
    except (OSError, ValueError):  # no path at all: too long, or with a null byte
        inside = False
    if not inside:
        raise ValueError(
            f"{str(picture)[:200]!r} is outside of --pictures-within {str(folder)!r}, by its name or by a link; put "
            "the picture into that folder"
        )


def _text_entries(path: Path, content: bytes) -> Iterator[tuple[int, Mapping[str, Any] | ValueError]]:
    for at, text in _text_lines(content):
        yield at, text if isinstance(text, ValueError) else {"prompt": text}


def _json_entries(path: Path, content: bytes) -> Iterator[tuple[int, Mapping[str, Any] | ValueError]]:
    for at, text in _text_lines(content):
        yield at, text if isinstance(text, ValueError) else _json_object(text)


def _csv_entries(path: Path, content: bytes) -> Iterator[tuple[int, Mapping[str, Any] | ValueError]]:
    # Bytes that are no UTF-8 become lone surrogates, which the line that holds them is refused for.
    rows = csv.reader(io.StringIO(content.decode("utf-8", "surrogateescape"), newline=""), strict=True)
    try:
        columns = [column.strip() for column in next(rows, [])]
    except csv.Error as error:
        raise UserError(f"--prompts {path} has no first line that names columns ({error})") from error
    unknown = [column for column in columns if column not in FIELDS]
    if "prompt" not in columns or unknown or len(set(columns)) < len(columns):
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
            yield at, ValueError(f"it is no CSV ({error}); close every quotation mark")
            continue
        if len(cells) > len(columns):
            yield at, ValueError(f"it has {len(cells)} cells for {len(columns)} columns; quote cells with commas")
        elif any(cell.strip() for cell in cells):
            yield at, {name: cell for name, cell in zip(columns, cells, strict=False) if cell.strip()}


def _text_lines(content: bytes) -> Iterator[tuple[int, str | ValueError]]:
    """Lines that are not blank, with their numbers from 1."""
    for at, line in enumerate(content.split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            yield at, ValueError(f"it is no UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8")
            continue
        if text:
            yield at, text


def _json_object(text: str) -> Mapping[str, Any] | ValueError:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("it names a key twice")
        return found

    try:
        values = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        return ValueError(f'it is not JSON ({error}); write an object such as {{"prompt": "a star", "seed": 1}}')
    if not isinstance(values, dict):
        return ValueError(f'it is {type(values).__name__}, no object; write one such as {{"prompt": "a star"}}')
    return {name: value for name, value in values.items() if value is not None}


def _line(
    values: Mapping[str, Any], number: int, at: int, folder: Path, first_seed: int, tome: ToMeConfig
) -> Line:
    for name in values:
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(FIELDS)}"
            raise ValueError(f"{name!r} is not known; {remedy}")
    prompt = _text(values, "prompt")
    if prompt is None or not prompt.strip():
        raise ValueError("it has no prompt; say what to draw")
    file = _text(values, "output")
    if file is None:
        file = f"{number:06d}-{slug(prompt)}.png"
    check_file_name(file)
    seed = _whole(values, "seed")
    if seed is None:
        seed = first_seed + number - 1
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed {seed} must be from 0 to 2**62")
    line = Line(
        number, at, file, prompt, _text(values, "negative_prompt"), seed, _size(values, "height"),
        _size(values, "width"), _ratio(values, tome), _text(values, "image"), _text(values, "control_image"), folder,
    )  # fmt: skip
    return line


def _take_name(line: Line, taken: dict[str, int]) -> None:
    """No two lines write one file, also where the file system does not tell capitals."""
    key = unicodedata.normalize("NFC", line.file).casefold()
    if key in taken:
        raise ValueError(f"output {line.file!r} is that of line {taken[key]} already; give each line its own")
    taken[key] = line.line


def _check_control(line: Line, pictures_within: Path | None) -> None:
    if line.image is not None and line.control_image is not None:
        raise ValueError("image and control_image were both given; give the photo or its edges, not both")
    path = line.control
    if path is None:
        return
    if pictures_within is not None:  # first, or the answers would tell what there is outside
        check_within(path, pictures_within)
    try:
        if not path.is_file():
            raise ValueError(f"{path} is not there, or no file; give a picture, relative to the file of prompts")
    except OSError as error:
        raise ValueError(f"{str(path)[:80]!r} cannot be read ({error.strerror}); give a picture") from error


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{name} {value!r} must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is no UTF-8; save the file as UTF-8") from None
    return value


def _whole(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,30}\s*", value):
        return int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} {str(value)[:40]!r} must be a whole number")
    return value


def _size(values: Mapping[str, Any], name: str) -> int | None:
    pixels = _whole(values, name)
    if pixels is not None and (pixels <= 0 or pixels % SIZE_MULTIPLE):
        raise ValueError(f"{name} {pixels} must be a multiple of {SIZE_MULTIPLE} above 0, such as 512")
    return pixels


def _ratio(values: Mapping[str, Any], tome: ToMeConfig) -> float | None:
    value = values.get("ratio")
    if value is None:
        return None
    try:
        ratio = math.nan if isinstance(value, bool | list | dict) else float(value)
        replace(tome, ratio=ratio)
    except ToMeError as error:
        raise ValueError(str(error)) from error
    except (ValueError, OverflowError):
        raise ValueError(f"ratio {str(value)[:40]!r} must be a number such as 0.5") from None
    return ratio
