"""Output folder of a run, and its finished images. Imports no Paddle.

Every image holds its line of the manifest and is written whole or not at all. So a run keeps nothing else while it
generates: ``manifest.jsonl`` is made from the images, when a run begins and when it ends.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.batch.options import BatchOptions
from ppdiffusers_tome.tools.batch.specs import BadLine, ImageSpec
from ppdiffusers_tome.tools.files import prepare_folder, refuse_existing, write_text
from ppdiffusers_tome.tools.images import read_settings, write_image
from ppdiffusers_tome.tools.measure.json_lines import lock_file, read_lines

if TYPE_CHECKING:
    from PIL import Image

MANIFEST, SKIPPED, RUN, LOCK = "manifest.jsonl", "skipped.jsonl", "run.json", ".lock"
IMAGE_KEY = "manifest"  # among the settings in an image
_TEMPORARY_FILE = re.compile(r"\..+\.(png|jsonl?)\.\d+\.tmp", re.IGNORECASE)


class OutputFolder:
    """The folder of a run's images."""

    def __init__(self, options: BatchOptions) -> None:
        self.path = options.output
        self._options = options

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other runs out, unless the file system has no locks."""
        prepare_folder(self.path, [], overwrite=True)
        with lock_file(self.path / LOCK, self.path):
            yield

    def prepare(self, specs: Sequence[ImageSpec]) -> None:
        """Write the manifest of what earlier runs finished; the folder must be locked."""
        options, continues = self._options, self._check_run()
        images = self._read_images(read_lines(self.path / MANIFEST) if continues else [])
        finished, file_by_number = _select(specs, images), {entry["number"]: file for file, entry in images.items()}
        for spec in specs:
            if spec.number in finished:
                continue
            if spec.number in file_by_number and not options.overwrite:
                raise UserError(
                    f"--prompts {options.prompts}, line {spec.line} differs from when "
                    f"{file_by_number[spec.number]!r} was generated; undo that, give another --output, or --overwrite "
                    "to generate it again"
                )
            refuse_existing(self.path / spec.file, options.overwrite)
        for path in self.path.glob(".*.tmp"):
            if _TEMPORARY_FILE.fullmatch(path.name):  # of a run that was killed while it wrote
                path.unlink(missing_ok=True)
        if not continues:
            (self.path / SKIPPED).unlink(missing_ok=True)
            write_text(self.path / RUN, json.dumps(options.identity, indent=2) + "\n", overwrite=True)
        self._write_lines(MANIFEST, finished.values())

    def read_finished(self) -> set[int]:
        """Read the numbers of the finished images from the manifest."""
        return {entry["number"] for entry in read_lines(self.path / MANIFEST) if _is_entry(entry)}

    def write(self, spec: ImageSpec, image: Image.Image, settings: Mapping[str, Any], batch: Sequence[int]) -> Path:
        """Write an image with its settings and the numbers of its batch."""
        size = {"height": image.height, "width": image.width}
        entry = {**spec.values, **size, "batch": list(batch), "line_checksum": spec.checksum}
        path = self.path / spec.file
        kept = {**settings, IMAGE_KEY: {"run": self._options.checksum, "entry": entry}}
        write_image(path, image, kept, overwrite=self._options.overwrite)
        return path

    def finish(self, specs: Sequence[ImageSpec], skipped: Iterable[BadLine]) -> int:
        """Write the manifest and the list of skipped lines; return how many are finished."""
        finished = _select(specs, self._read_images(read_lines(self.path / MANIFEST)))
        self._write_lines(MANIFEST, finished.values())
        if lines := [bad._asdict() for bad in sorted(skipped)]:
            self._write_lines(SKIPPED, lines)
        else:
            (self.path / SKIPPED).unlink(missing_ok=True)
        return len(finished)

    def _check_run(self) -> bool:
        """Return True where the folder holds this run, False where it begins."""
        path, now, overwrite = self.path / RUN, self._options.identity, self._options.overwrite
        if not path.exists():
            prepare_folder(self.path, [RUN, MANIFEST, SKIPPED], overwrite=overwrite)
            return False
        before: dict[str, Any] = {}
        with suppress(OSError, ValueError, TypeError, RecursionError):
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        if before == now or overwrite:
            return before == now
        changes = ", ".join(
            f"{name}={truncated_repr(before.get(name))} then and {truncated_repr(value)} now"
            for name, value in now.items() if before.get(name) != value
        )  # fmt: skip
        raise UserError(
            f"--output {self.path} holds images of another run ({changes[:400]}); give the same arguments to resume, "
            "another --output, or --overwrite to start over"
        )

    def _read_images(self, manifest: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the manifest's lines of this run's images in the folder, by file."""
        known = {entry.get("file"): entry for entry in manifest if _is_entry(entry)}
        files = sorted(path for path in self.path.iterdir() if path.suffix.lower() == ".png")
        entries = {path.name: known.get(path.name) or self._read_entry(path) for path in files}
        return {file: entry for file, entry in entries.items() if entry is not None}

    def _read_entry(self, path: Path) -> dict[str, Any] | None:
        """Return the manifest's line that an image of this run holds, or None."""
        with suppress(Exception):  # whatever the file holds, it is no image of this run
            kept = read_settings(path)[IMAGE_KEY]
            entry = {**kept["entry"], "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            if kept["run"] == self._options.checksum and _is_entry(entry):
                return entry
        return None

    def _write_lines(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        write_text(self.path / name, "".join(json.dumps(line) + "\n" for line in lines), overwrite=True)


def _select(specs: Sequence[ImageSpec], images: Mapping[str, Any]) -> dict[int, Any]:
    """Return the lines of the images that their specs ask for, by number."""
    found = {spec: images[spec.file] for spec in specs if spec.file in images}
    return {spec.number: {**entry, "line": spec.line} for spec, entry in found.items()
            if entry["line_checksum"] == spec.checksum}  # fmt: skip


def _is_entry(line: Mapping[str, Any]) -> bool:
    texts = [line.get(name) for name in ("line_checksum", "sha256")]
    return isinstance(line.get("number"), int) and all(isinstance(text, str) for text in texts)
