"""What earlier runs left in the folder of one chunk, sorted out line by line. Knows no Paddle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.chunks import INDEX, Chunk, Progress, checksum_of_names
from ppdiffusers_tome.tools.batch.finding import read_chunk
from ppdiffusers_tome.tools.batch.folder import (
    MANIFEST,
    PICTURE_KEY,
    RUN,
    SKIPPED,
    OutputFolder,
    entry_of,
    with_checksum,
)
from ppdiffusers_tome.tools.batch.line import STOP, BadLine, Line
from ppdiffusers_tome.tools.batch.prompts import PromptsFile
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.images import read_settings
from ppdiffusers_tome.tools.measure.json_lines import Writer, refuse_writers

_LEFTOVER = re.compile(r"\.(.+)\.\d+\.tmp")


def look_at(run: Run, file: PromptsFile, chunk: Chunk, own: Writer | None = None) -> Chunk:
    """Put the folder of a chunk in order, and find out what is left to draw.

    Args:
        run, file, chunk: whose folder is there; of the chunk's progress only whether it is known counts.
        own: the part of its manifest that this process writes, if it does.

    Returns:
        The chunk with its progress.

    Raises:
        UserError: the folder holds what must not be replaced, or another run writes to it.
    """
    folder = OutputFolder(chunk.folder(run))
    if own is None:
        refuse_writers(folder.path / MANIFEST, folder.path)
    folder.gather(own)
    lines, bad = read_chunk(run, file, chunk)
    _drop_changed(run, folder, lines)
    for line in lines:
        if line.number in folder.entries and not folder.is_done(line):
            del folder.entries[line.number]
    # What was skipped is tried again, unless it is the same line and will fail as it did.
    if run.on_error == STOP or chunk.progress is None:
        folder.skipped.clear()
    folder.skipped = {number: each for number, each in folder.skipped.items() if not each.again}
    _adopt(run, folder, lines)
    folder.write()
    _clear_leftovers(folder.path, lines)
    drawn = sum(line.number in folder.entries for line in lines)
    names = checksum_of_names(folder.path, hidden=True) if chunk.number > 1 else None
    return replace(chunk, progress=Progress(drawn, len(folder.skipped), left_of(run, folder, lines, bad), names))


def left_of(run: Run, folder: OutputFolder, lines: Sequence[Line], bad: Sequence[BadLine]) -> tuple[int, int]:
    """How many lines of a chunk are neither drawn nor skipped, as in ``Progress``."""
    settled = folder.settled
    to_draw = [line for line in lines if line.number not in settled]
    controlled = sum(run.is_controlled(line) for line in to_draw)
    return len(to_draw) - controlled + sum(each.number not in folder.skipped for each in bad), controlled


def _drop_changed(run: Run, folder: OutputFolder, lines: Sequence[Line]) -> None:
    """A line that asks for something else than when it was drawn is not finished."""
    for line in lines:
        entry = folder.entries.get(line.number)
        if entry is None or entry.get("line_checksum") == line.checksum:
            continue
        if not run.overwrite:
            raise UserError(
                f"--prompts {run.prompts}, line {line.line} differs from when {entry.get('file')} was "
                "drawn; undo that, give another --output, or --overwrite to redraw it"
            )
        del folder.entries[line.number]


def _adopt(run: Run, folder: OutputFolder, lines: Sequence[Line]) -> None:
    """Take in pictures that were finished just when the run was killed; refuse those that are somebody else's."""
    for line in lines:
        path = folder.path / line.file
        if line.number in folder.entries or not (path.exists() or path.is_symlink()):
            continue
        kept = _entry_in(path, run.checksum)
        drawn_with = {name: kept.get(name) for name in ("height", "width", "ratio", "batch")}
        entry = {**entry_of(line, 0, 0, 0, ()), **drawn_with}
        if kept == entry:
            folder.entries[line.number] = with_checksum(entry, path)
            folder.skipped.pop(line.number, None)
        elif path.is_dir():
            raise UserError(f"{path} is a folder, so no file can be written there; choose another --output")
        elif not run.overwrite:
            raise UserError(f"{path} exists already; choose another --output, or replace it with --overwrite")


def _entry_in(path: Path, run: str) -> dict[str, Any]:
    """What a picture of this run says of itself; nothing where it is none, or not whole."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.load()
        kept = read_settings(path).get(PICTURE_KEY)
    except (
        UserError, OSError, SyntaxError, ValueError, AttributeError, RecursionError, Image.DecompressionBombError,
    ):  # fmt: skip
        return {}
    entry = kept.get("entry") if isinstance(kept, dict) and kept.get("run") == run else None
    return entry if isinstance(entry, dict) else {}


def _clear_leftovers(path: Path, lines: Sequence[Line]) -> None:
    """Remove the temporary files of a run that was killed while it wrote."""
    ours = {MANIFEST, SKIPPED, RUN, INDEX, *(line.file for line in lines)}
    for leftover in path.glob(".*.tmp"):
        named = _LEFTOVER.fullmatch(leftover.name)
        if named and named[1] in ours:
            leftover.unlink(missing_ok=True)
