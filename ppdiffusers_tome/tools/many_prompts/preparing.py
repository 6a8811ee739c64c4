"""What earlier runs left in the output folder, sorted out before anything is drawn; no moment is a bad one to stop.

Knows no Paddle.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.exporting.files import prepare_folder, write_whole
from ppdiffusers_tome.tools.drawing.picture_files import read_settings
from ppdiffusers_tome.tools.many_prompts.folder import (
    MANIFEST,
    PICTURE_KEY,
    RUN,
    SKIPPED,
    OutputFolder,
    entry_of,
    rank_manifest,
    run_checksum,
    with_checksum,
)
from ppdiffusers_tome.tools.many_prompts.line import Line
from ppdiffusers_tome.tools.measuring.json_lines import Writer, parts_of, refuse_writers

_LEFTOVER = re.compile(r"\.(.+)\.\d+\.tmp")


def prepare_output(
    path: Path, prompts: Path, run: Mapping[str, Any], lines: Sequence[Line], *, overwrite: bool
) -> tuple[OutputFolder, Writer]:
    """Find out what earlier runs finished. For rank 0, while the other ranks wait.

    Args:
        path: the output folder; made where it does not exist.
        prompts: the file that the lines are from, to be named in errors.
        run: all that the pictures depend on besides their lines, as plain values.
        lines: all that can be drawn.
        overwrite: what is there and belongs to something else may be replaced.

    Returns:
        The folder, and rank 0's manifest.

    Raises:
        UserError: the folder cannot be written, holds what must not be replaced, or another run writes to it.
    """
    names = [] if (path / RUN).exists() else [RUN, MANIFEST, SKIPPED, *(line.file for line in lines)]
    prepare_folder(path, names, overwrite=overwrite)
    manifest = rank_manifest(path, 0)
    try:
        refuse_writers(path / MANIFEST, manifest.path)
        _begin(path, run, overwrite=overwrite)
        folder = OutputFolder(path)
        folder.gather(manifest)
        _drop_changed(folder, prompts, lines, overwrite=overwrite)
        _adopt(folder, run, lines, overwrite=overwrite)
        _clear_leftovers(path, lines)
    except BaseException:
        if manifest.path.stat().st_size == 0:
            manifest.path.unlink()
        manifest.close()
        raise
    return folder, manifest


def _begin(path: Path, run: Mapping[str, Any], *, overwrite: bool) -> None:
    """Make the folder this run's, unless it is already; what another run finished no longer counts then."""
    known = path / RUN
    before: Any = None
    if known.exists():
        with suppress(OSError, ValueError, RecursionError):
            before = json.loads(known.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(run))
    if before == now:
        return
    if known.exists() and not overwrite:
        if not isinstance(before, dict):
            raise UserError(
                f"--output {path} holds a {RUN} that cannot be read, so nothing says what the pictures there belong "
                "to; give another --output, or --overwrite to begin anew"
            )
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        words = ", ".join(f"{name}={before.get(name)!r} then and {now.get(name)!r} now" for name in changed[:3])
        raise UserError(
            f"--output {path} holds pictures made otherwise ({words}); give the same arguments to resume, another "
            "--output, or --overwrite to begin anew"
        )
    for name in (MANIFEST, SKIPPED):
        (path / name).unlink(missing_ok=True)
    for part in parts_of(path / MANIFEST):
        os.truncate(part, 0)
    text = json.dumps(now, indent=2) + "\n"
    write_whole(known, lambda file: file.write(text.encode()), overwrite=True)


def _drop_changed(folder: OutputFolder, prompts: Path, lines: Sequence[Line], *, overwrite: bool) -> None:
    """A line that asks for something else than when it was drawn is not finished."""
    for line in lines:
        entry = folder.entries.get(line.number)
        if entry is None or entry.get("line_checksum") == line.checksum:
            continue
        if not overwrite:
            raise UserError(
                f"--prompts {prompts}, line {line.line} asks for something else than when {entry.get('file')} was "
                "drawn; undo that, give another --output, or --overwrite to draw it anew"
            )
        del folder.entries[line.number]


def _adopt(folder: OutputFolder, run: Mapping[str, Any], lines: Sequence[Line], *, overwrite: bool) -> None:
    """Take in pictures that were finished just when the run was killed; refuse those that are somebody else's."""
    checksum = run_checksum(run)
    for line in lines:
        path = folder.path / line.file
        if line.number in folder.entries or not (path.exists() or path.is_symlink()):
            continue
        kept = _entry_in(path, checksum)
        drawn_with = {name: kept.get(name) for name in ("height", "width", "ratio", "batch")}
        entry = {**entry_of(line, 0, 0, 0, ()), **drawn_with}
        if kept == entry:
            folder.entries[line.number] = with_checksum(entry, path)
        elif path.is_dir():
            raise UserError(f"{path} is a folder, so no file can be written there; choose another --output")
        elif not overwrite:
            raise UserError(f"{path} exists already; choose another --output, or replace it with --overwrite")
    folder.write()


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
    ours = {MANIFEST, SKIPPED, RUN, *(line.file for line in lines)}
    for leftover in path.glob(".*.tmp"):
        named = _LEFTOVER.fullmatch(leftover.name)
        if named and named[1] in ours:
            leftover.unlink(missing_ok=True)
