"""The output folder of many pictures: what is finished, written so that no moment is a bad one to stop.

Knows no Paddle. ``manifest.jsonl`` has a line of JSON for every finished picture, in the order of the prompts; it is
only ever replaced whole. While a run lasts, each rank appends to a ``manifest.part-RANK.jsonl`` of its own, which rank
0 gathers at the end, or at the beginning of the next run. A picture is on the disk before its line is, and carries that
line in itself, so a line that was lost is found in the picture.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.exporting.files import prepare_folder, write_whole
from ppdiffusers_tome.tools.drawing.picture_files import read_settings
from ppdiffusers_tome.tools.many_prompts.prompts import BadLine, Line
from ppdiffusers_tome.tools.measuring.json_lines import Writer, part_of, parts_of, read_lines, refuse_writers

MANIFEST, SKIPPED, RUN = "manifest.jsonl", "skipped.jsonl", "run.json"
PICTURE_KEY = "many"  # of the settings in a picture
_KEYS = (
    "number", "line", "file", "prompt", "negative_prompt", "seed", "height", "width", "ratio", "image",
    "control_image", "batch", "asked",
)  # fmt: skip
_LEFTOVER = re.compile(r"\.(.+)\.\d+\.tmp")


class Part(Writer):
    """What one rank finished in this run; nobody else may write it meanwhile.

    Args:
        folder: of the pictures.
        rank: whose part it is.

    Raises:
        UserError: another process writes it, or it cannot be written.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(part_of(folder / MANIFEST, rank))


class Folder:
    """The folder and what is finished in it.

    Args:
        path: the folder.

    Attributes:
        entries: the manifest's lines by the numbers of the prompts; read when it is made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = {entry["number"]: entry for entry in read_lines(path / MANIFEST) if _is_entry(entry)}

    def is_done(self, line: Line) -> bool:
        """Whether its picture is finished and still there."""
        return line.number in self.entries and (self.path / line.file).is_file()

    def gather(self, own: Part | None = None) -> list[BadLine]:
        """Take what the parts say into the manifest, and the parts away; returns the lines that they skipped.

        ``own`` is a part that is going to be written: it stays, empty.
        """
        parts = parts_of(self.path / MANIFEST)
        found = [entry for part in parts for entry in read_lines(part)]
        self.entries |= {entry["number"]: entry for entry in found if _is_entry(entry)}
        self.write()
        for part in parts:
            if own is not None and part == own.path:
                own.empty()
            else:
                part.unlink()
        skipped = {entry["skipped"]: entry["error"] for entry in found if _is_skipped(entry)}
        return [BadLine(line, error) for line, error in skipped.items()]

    def write(self) -> None:
        """Replace the manifest by what is known now, in the order of the prompts."""
        lines = [json.dumps(self.entries[number]) + "\n" for number in sorted(self.entries)]
        write_whole(self.path / MANIFEST, lambda file: file.write("".join(lines).encode()), overwrite=True)

    def write_skipped(self, bad: Iterable[BadLine]) -> None:
        """Replace the list of lines that could not be drawn; without any there is no such file."""
        ordered = sorted(set(bad), key=lambda each: each.line)
        path = self.path / SKIPPED
        if not ordered:
            path.unlink(missing_ok=True)
            return
        text = "".join(json.dumps({"line": each.line, "error": each.error}) + "\n" for each in ordered)
        write_whole(path, lambda file: file.write(text.encode()), overwrite=True)


def put_in_order(
    path: Path, prompts: Path, run: Mapping[str, Any], lines: Sequence[Line], *, overwrite: bool
) -> tuple[Folder, Part]:
    """Find out, before anything is drawn, what earlier runs finished. For rank 0, while the other ranks wait.

    Args:
        path: the output folder; made where it does not exist.
        prompts: the file that the lines are from, to be named in errors.
        run: all that the pictures depend on besides their lines, as plain values.
        lines: all that can be drawn.
        overwrite: what is there and belongs to something else may be replaced.

    Returns:
        The folder, and rank 0's part.

    Raises:
        UserError: the folder cannot be written, holds what must not be replaced, or another run writes to it.
    """
    names = [] if (path / RUN).exists() else [line.file for line in lines]
    prepare_folder(path, [RUN, MANIFEST, SKIPPED, *names] if names else [], overwrite=overwrite)
    part = Part(path, 0)
    try:
        refuse_writers(path / MANIFEST, part.path)
        _begin(path, run, overwrite=overwrite)
        folder = Folder(path)
        folder.gather(part)
        _drop_changed(folder, prompts, lines, overwrite=overwrite)
        _adopt(folder, run, lines, overwrite=overwrite)
        _clear_leftovers(path, lines)
    except BaseException:
        if part.path.stat().st_size == 0:
            part.path.unlink()
        part.close()
        raise
    return folder, part


def holds_run(path: Path, token: int) -> bool:
    """Whether rank 0 has begun a run here and noted that number in its part."""
    return any(line.get("run") == token for line in read_lines(part_of(path / MANIFEST, 0)))


def entry_of(line: Line, height: int, width: int, ratio: Any, together: Sequence[Line]) -> dict[str, Any]:
    """A picture's line of the manifest but for the checksum of its file: the same whenever the same is drawn.

    Args:
        line: what was asked.
        height, width, ratio: what that came to.
        together: the lines that were drawn in one batch, which its bits may depend on.
    """
    return {
        "number": line.number, "line": line.line, "file": line.file, "prompt": line.prompt,
        "negative_prompt": line.negative_prompt, "seed": line.seed, "height": height, "width": width, "ratio": ratio,
        "image": line.image, "control_image": line.control_image, "batch": [each.number for each in together],
        "asked": line.asked,
    }  # fmt: skip


def with_checksum(entry: Mapping[str, Any], picture: Path) -> dict[str, Any]:
    """An entry with the SHA-256 of its file, its keys in the manifest's order, which a picture does not keep."""
    return {name: entry[name] for name in _KEYS} | {"sha256": hashlib.sha256(picture.read_bytes()).hexdigest()}


def run_checksum(run: Mapping[str, Any]) -> str:
    """What a picture keeps of the run it belongs to."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]


def _begin(path: Path, run: Mapping[str, Any], *, overwrite: bool) -> None:
    """Make the folder this run's, unless it is already; what another run finished no longer counts then."""
    known = path / RUN
    there: Any = None
    if known.exists():
        with suppress(OSError, ValueError, RecursionError):
            there = json.loads(known.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(run))
    if there == now:
        return
    if there is None and known.exists() and not overwrite:
        raise UserError(
            f"--output {path} holds a {RUN} that cannot be read, so nothing says what the pictures there belong to; "
            "give another --output, or --overwrite to begin anew"
        )
    if there is not None and not overwrite:
        before = there if isinstance(there, dict) else {}
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        words = ", ".join(f"{name}={before.get(name)!r} then and {now.get(name)!r} now" for name in changed[:3])
        raise UserError(
            f"--output {path} holds pictures made otherwise ({words}); give the same arguments to go on with them, "
            "another --output, or --overwrite to begin anew"
        )
    for name in (MANIFEST, SKIPPED):
        (path / name).unlink(missing_ok=True)
    for part in parts_of(path / MANIFEST):
        os.truncate(part, 0)
    text = json.dumps(now, indent=2) + "\n"
    write_whole(known, lambda file: file.write(text.encode()), overwrite=True)


def _drop_changed(folder: Folder, prompts: Path, lines: Sequence[Line], *, overwrite: bool) -> None:
    """A line that asks for something else than when it was drawn is not finished."""
    for line in lines:
        entry = folder.entries.get(line.number)
        if entry is None or entry.get("asked") == line.asked:
            continue
        if not overwrite:
            raise UserError(
                f"--prompts {prompts}, line {line.line} asks for something else than when {entry.get('file')} was "
                "drawn; undo that, give another --output, or --overwrite to draw it anew"
            )
        del folder.entries[line.number]


def _adopt(folder: Folder, run: Mapping[str, Any], lines: Sequence[Line], *, overwrite: bool) -> None:
    """Take in pictures that were finished just when the run was killed; refuse those that are somebody else's."""
    checksum = run_checksum(run)
    for line in lines:
        path = folder.path / line.file
        if line.number in folder.entries or not (path.exists() or path.is_symlink()):
            continue
        entry = _entry_in(path, checksum)
        if entry.get("asked") == line.asked and entry.get("number") == line.number:
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
    return entry if isinstance(entry, dict) and set(entry) == set(_KEYS) else {}


def _clear_leftovers(path: Path, lines: Sequence[Line]) -> None:
    """Remove the temporary files of a run that was killed while it wrote."""
    ours = {MANIFEST, SKIPPED, RUN, *(line.file for line in lines)}
    for leftover in path.glob(".*.tmp"):
        found = _LEFTOVER.fullmatch(leftover.name)
        if found and found[1] in ours:
            leftover.unlink(missing_ok=True)


def _is_entry(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("number"), int) and isinstance(entry.get("sha256"), str)


def _is_skipped(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("skipped"), int) and isinstance(entry.get("error"), str)
