"""The chunks of a file of prompts: lines whose pictures share a folder, and what is known of them. Knows no Paddle.

Chunks follow from the file alone: a fixed number of lines each. ``chunks.jsonl`` in the output folder has a line for
each: where it is in the file, the checksum of what was read there, and what is left to draw.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.batch.folder import write_lines
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.measure.json_lines import read_lines

INDEX = "chunks.jsonl"
# Lines that no edges guide are drawn first, as the others need another pipeline.
PLAIN, CONTROLLED = 0, 1


@dataclass(frozen=True)
class Progress:
    """What has become of a chunk.

    Attributes:
        drawn: how many pictures are there.
        skipped: how many lines could not be drawn.
        left: how many are to be drawn or tried again, ``PLAIN`` ones, with those that cannot be read, and
            ``CONTROLLED`` ones.
        names: checksum of the names in the chunk's folder; None where it must be looked at, as the first one's always.
    """

    drawn: int
    skipped: int
    left: tuple[int, int]
    names: str | None


@dataclass(frozen=True)
class Chunk:
    """Some lines of a file of prompts whose pictures share a folder.

    Attributes:
        number: of its first entry, from 1.
        entries: how many it has, bad lines included.
        line, lines: the line of the file that it begins on, from 1, and how many it takes.
        offset, length: the same in bytes, from 0.
        checksum: of those bytes, of these numbers but for the place, and of what lines are read and drawn with.
        controlled: how many of its lines edges guide.
        bad: how many cannot be read.
        progress: what has become of it; None where that is to be found out.
    """

    number: int
    entries: int
    line: int
    lines: int
    offset: int
    length: int
    checksum: str
    controlled: int
    bad: int
    progress: Progress | None = None

    @property
    def untouched(self) -> Progress:
        """Its progress before anything is drawn."""
        return Progress(0, 0, (self.entries - self.controlled, self.controlled), None)

    @property
    def left(self) -> tuple[int, int]:
        """As in ``Progress``."""
        return (self.progress or self.untouched).left

    def folder(self, run: Run) -> Path:
        """Where its pictures and its manifest are.

        The first chunk's are in the output folder itself, the others' in a folder each. Of those there are a thousand
        in the output folder, and every further thousand has another around it.
        """
        folder, each = run.output, run.images_per_folder
        for pictures in (run.folders_per_folder * each, each):
            first = (self.number - 1) // pictures * pictures + 1
            if first > 1:
                folder /= f"{first:06d}-{first + pictures - 1:06d}"
        return folder


def read_index(folder: Path) -> dict[int, Chunk]:
    """The chunks that are known in an output folder, in order, by their numbers; what is no chunk is left out."""
    found = [chunk for line in read_lines(folder / INDEX) if (chunk := _chunk_in(line)) is not None]
    return {chunk.number: chunk for chunk in sorted(found, key=lambda chunk: chunk.number)}


def write_index(folder: Path, chunks: Iterable[Chunk]) -> None:
    """Replace what is known of the chunks."""
    write_lines(
        folder / INDEX, ({**vars(chunk), "progress": chunk.progress and vars(chunk.progress)} for chunk in chunks)
    )


def checksum_of_names(folder: Path, *, hidden: bool) -> str | None:
    """Tells whether a file has come or gone; None where there is no such folder.

    Args:
        folder: which.
        hidden: whether temporary files and locks count, which are there while somebody writes.
    """
    try:
        names = os.listdir(os.fsencode(folder))
    except (FileNotFoundError, NotADirectoryError):
        return None
    shown = sorted(name for name in names if hidden or not name.startswith(b"."))
    return hashlib.sha256(b"/".join(shown)).hexdigest()[:16]


def _chunk_in(line: Mapping[str, Any]) -> Chunk | None:
    numbers = [line.get(name) for name in Chunk.__dataclass_fields__ if name not in ("checksum", "progress")]
    if not _are_counts(*numbers) or not isinstance(line.get("checksum"), str) or len(line) != len(numbers) + 2:
        return None
    return Chunk(**{**line, "progress": _progress_in(line.get("progress"))})


def _progress_in(value: Any) -> Progress | None:
    if not isinstance(value, dict) or not isinstance(value.get("left"), list) or len(value["left"]) != 2:
        return None
    drawn, skipped, (plain, controlled) = value.get("drawn"), value.get("skipped"), value["left"]
    if not _are_counts(drawn, skipped, plain, controlled):
        return None
    return Progress(drawn, skipped, (plain, controlled), value.get("names"))  # type: ignore[arg-type]


def _are_counts(*values: Any) -> bool:
    return all(isinstance(value, int) and value >= 0 for value in values)
