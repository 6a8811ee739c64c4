"""The folder of a chunk's pictures: what is finished. Knows no Paddle.

``manifest.jsonl`` has a line of JSON for every finished picture, in the order of the prompts, and ``skipped.jsonl`` one
for every line that could not be drawn; they are only ever replaced whole. Meanwhile each rank appends to a
``manifest.part-RANK.jsonl`` of its own, which rank 0 gathers when all is there, or at the beginning of the next run. A
picture is on the disk before its line is, and carries that line in itself, so a line that was lost is found in the
picture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.batch.line import BadLine, Line
from ppdiffusers_tome.tools.files import write_atomically
from ppdiffusers_tome.tools.measure.json_lines import Writer, part_of, parts_of, read_lines

MANIFEST, SKIPPED, RUN = "manifest.jsonl", "skipped.jsonl", "run.json"
PICTURE_KEY = "manifest"  # of the settings in a picture


class OutputFolder:
    """A folder and what is finished in it.

    Args:
        path: the folder.

    Attributes:
        entries: the manifest's lines by the numbers of the prompts; read when it is made.
        skipped: the lines that could not be drawn, by their numbers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = {entry["number"]: entry for entry in read_lines(path / MANIFEST) if _is_entry(entry)}
        self.skipped = {bad.number: bad for line in read_lines(path / SKIPPED) if (bad := _bad_line_in(line))}

    @property
    def settled(self) -> Set[int]:
        """The numbers of the lines that are finished, one way or the other."""
        return self.entries.keys() | self.skipped.keys()

    def is_done(self, line: Line) -> bool:
        """Whether its picture is finished and still there."""
        return line.number in self.entries and (self.path / line.file).is_file()

    def read_parts(self) -> None:
        """Take in what the ranks' manifests say."""
        for part in parts_of(self.path / MANIFEST):
            for line in read_lines(part):
                if _is_entry(line):
                    self.entries[line["number"]] = line
                    self.skipped.pop(line["number"], None)
                elif bad := _bad_line_in(line):
                    self.skipped[bad.number] = bad

    def gather(self, own: Writer | None = None) -> None:
        """Take what the ranks' manifests say into the one, and them away.

        ``own`` is one that is going to be written: it stays, empty.
        """
        self.read_parts()
        self.write()
        for part in parts_of(self.path / MANIFEST):
            if own is not None and part == own.path:
                own.empty()
            else:
                part.unlink()

    def write(self) -> None:
        """Replace the manifest and the list of skipped lines, if there are any, by what is known now."""
        write_lines(self.path / MANIFEST, [self.entries[number] for number in sorted(self.entries)])
        if self.skipped:
            write_lines(self.path / SKIPPED, [vars(self.skipped[number]) for number in sorted(self.skipped)])
        else:
            (self.path / SKIPPED).unlink(missing_ok=True)


def rank_manifest(folder: Path, rank: int) -> Writer:
    """Where a rank writes what it finishes in this run; nobody else may write it meanwhile.

    Raises:
        UserError: another process writes it, or it cannot be written.
    """
    return Writer(part_of(folder / MANIFEST, rank))


def holds_run(path: Path, token: int) -> bool:
    """Whether rank 0 has begun a run here and noted that number in its manifest."""
    return any(line.get("run") == token for line in read_lines(part_of(path / MANIFEST, 0)))


def entry_of(line: Line, height: int, width: int, ratio: Any, batch: Sequence[int]) -> dict[str, Any]:
    """A picture's line of the manifest but for the checksum of its file: the same whenever the same is drawn.

    Args:
        line: what was asked for.
        height, width, ratio: what that came to.
        batch: the numbers of the lines that were drawn together, which its bits may depend on.
    """
    return {
        "number": line.number, "line": line.line, "file": line.file, "prompt": line.prompt,
        "negative_prompt": line.negative_prompt, "seed": line.seed, "height": height, "width": width, "ratio": ratio,
        "image": line.image, "control_image": line.control_image, "batch": list(batch), "line_checksum": line.checksum,
    }  # fmt: skip


def with_checksum(entry: Mapping[str, Any], picture: Path) -> dict[str, Any]:
    """An entry with the SHA-256 of its file."""
    return {**entry, "sha256": hashlib.sha256(picture.read_bytes()).hexdigest()}


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file by these objects, one per line.

    Raises:
        UserError: it cannot be written.
    """
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=True)


def _is_entry(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("number"), int) and isinstance(line.get("sha256"), str)


def _bad_line_in(line: Mapping[str, Any]) -> BadLine | None:
    values: list[Any] = [line.get(name) for name in ("number", "line", "error", "again")]
    return BadLine(*values) if [type(value) for value in values] == [int, int, str, bool] else None
