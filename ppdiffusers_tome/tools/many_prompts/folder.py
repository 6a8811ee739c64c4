"""The output folder of many pictures: what is finished. Knows no Paddle.

``manifest.jsonl`` has a line of JSON for every finished picture, in the order of the prompts; it is only ever replaced
whole. While a run lasts, each rank appends to a ``manifest.part-RANK.jsonl`` of its own, which rank 0 gathers at the
end, or at the beginning of the next run. A picture is on the disk before its line is, and carries that line in itself,
so a line that was lost is found in the picture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdiffusers_tome.exporting.files import write_whole
from ppdiffusers_tome.tools.many_prompts.line import BadLine, Line
from ppdiffusers_tome.tools.measuring.json_lines import Writer, part_of, parts_of, read_lines

MANIFEST, SKIPPED, RUN = "manifest.jsonl", "skipped.jsonl", "run.json"
PICTURE_KEY = "manifest"  # of the settings in a picture


class OutputFolder:
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

    def gather(self, own: Writer | None = None) -> list[BadLine]:
        """Take what the ranks' manifests say into the one, and them away; returns the lines that they skipped.

        ``own`` is one that is going to be written: it stays, empty.
        """
        parts = parts_of(self.path / MANIFEST)
        written = [line for part in parts for line in read_lines(part)]
        self.entries |= {entry["number"]: entry for entry in written if _is_entry(entry)}
        self.write()
        for part in parts:
            if own is not None and part == own.path:
                own.empty()
            else:
                part.unlink()
        skipped = {line["skipped"]: line["error"] for line in written if _is_skipped(line)}
        return [BadLine(number, error) for number, error in skipped.items()]

    def write(self) -> None:
        """Replace the manifest by what is known now, in the order of the prompts."""
        _write_lines(self.path / MANIFEST, [self.entries[number] for number in sorted(self.entries)])

    def write_skipped(self, bad: Iterable[BadLine]) -> None:
        """Replace the list of lines that could not be drawn; without any there is no such file."""
        ordered = sorted(set(bad), key=lambda each: each.line)
        if ordered:
            _write_lines(self.path / SKIPPED, [vars(each) for each in ordered])
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


def run_checksum(run: Mapping[str, Any]) -> str:
    """What a picture keeps of the run it belongs to."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_whole(path, lambda file: file.write(text.encode()), overwrite=True)


def _is_entry(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("number"), int) and isinstance(line.get("sha256"), str)


def _is_skipped(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("skipped"), int) and isinstance(line.get("error"), str)
