"""What earlier runs left in the output folder, sorted out before anything is drawn; no moment is a bad one to stop.

Knows no Paddle.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.batch.chunks import INDEX, Chunk, checksum_of_names, write_index
from ppdiffusers_tome.tools.batch.finding import read_chunk
from ppdiffusers_tome.tools.batch.folder import MANIFEST, RUN, SKIPPED, rank_manifest
from ppdiffusers_tome.tools.batch.line import SKIP
from ppdiffusers_tome.tools.batch.looking import look_at
from ppdiffusers_tome.tools.batch.prompts import PromptsFile
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.files import prepare_folder, write_atomically
from ppdiffusers_tome.tools.generation.edges import STRETCH
from ppdiffusers_tome.tools.measure.json_lines import Writer, parts_of, refuse_writers

_CHUNK_FOLDER = re.compile(r"\d{6,}-\d{6,}")


def prepare_output(run: Run, file: PromptsFile, chunks: Sequence[Chunk]) -> tuple[list[Chunk], Writer]:
    """Find out what earlier runs finished. For rank 0, while the other ranks wait.

    Args:
        run: names the folder, which is made where it does not exist.
        file, chunks: what there is to draw.

    Returns:
        The chunks with their progress, as the folder's index has them now, and rank 0's manifest.

    Raises:
        UserError: the folder cannot be written, holds what must not be replaced, or another run writes to it.
    """
    _refuse_strangers(run, file, chunks)
    manifest = rank_manifest(run.output, 0)
    try:
        refuse_writers(run.output / MANIFEST, manifest.path)
        _begin(run, controlled=any(chunk.controlled for chunk in chunks))
        chunks = [_with_progress(run, file, chunk, manifest) for chunk in chunks]
        write_index(run.output, chunks)
    except BaseException:
        if manifest.path.stat().st_size == 0:
            manifest.path.unlink()
        manifest.close()
        raise
    return list(chunks), manifest


def _refuse_strangers(run: Run, file: PromptsFile, chunks: Sequence[Chunk]) -> None:
    """Make sure that the folder can be written, and that nothing of no run is in the way of one that begins."""
    begins = not (run.output / RUN).exists()
    prepare_folder(run.output, [RUN, MANIFEST, SKIPPED, INDEX] if begins else [], overwrite=run.overwrite)
    for chunk in chunks:
        folder = chunk.folder(run)
        for each in (folder, folder.parent) if folder != run.output else ():
            if each != run.output and (each.is_symlink() or each.is_file()):  # a link of somebody's may lead anywhere
                raise UserError(f"{each} is a link or a file, and pictures must go there; choose another --output")
        if begins and folder.exists():
            names = [MANIFEST, SKIPPED, *(line.file for line in read_chunk(run, file, chunk)[0])]
            prepare_folder(folder, names, overwrite=run.overwrite)


def _begin(run: Run, *, controlled: bool) -> None:
    """Make the folder this run's, unless it is already; what another run finished no longer counts then.

    ``controlled``: edges guide some of the lines.
    """
    path, known = run.output, run.output / RUN
    before: Any = None
    if known.exists():
        with suppress(OSError, ValueError, RecursionError):
            before = json.loads(known.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(run.identity))
    if isinstance(before, dict):
        before = _completed(before, now, controlled=controlled)
    if before == now:
        return
    if known.exists() and not run.overwrite:
        if not isinstance(before, dict):
            raise UserError(
                f"--output {path} holds a {RUN} that cannot be read, so nothing says what the pictures there belong "
                "to; give another --output, or --overwrite to start over"
            )
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        words = ", ".join(
            f"{name}={truncated_repr(before.get(name))} then and {truncated_repr(now.get(name))} now"
            for name in changed[:3]
        )
        raise UserError(
            f"--output {path} holds pictures made differently ({words}); give the same arguments to resume, another "
            "--output, or --overwrite to start over"
        )
    for part in parts_of(path / MANIFEST):
        os.truncate(part, 0)
    for folder in _chunk_folders(path):
        for each in (*parts_of(folder / MANIFEST), folder / MANIFEST, folder / SKIPPED):
            each.unlink(missing_ok=True)
    for name in (MANIFEST, SKIPPED, INDEX):
        (path / name).unlink(missing_ok=True)
    text = json.dumps(now, indent=2) + "\n"
    write_atomically(known, lambda file: file.write(text.encode()), overwrite=True)


def _completed(before: dict[str, Any], now: dict[str, Any], *, controlled: bool) -> dict[str, Any]:
    """What a run was, with what runs did not yet say of themselves, as it was when there was no choice.

    Edges were stretched to the size of their picture, where there were any; newer settings of ToMe were at what is now
    their default.
    """
    whole = dict(before)
    if "fit" in now:
        whole.setdefault("fit", STRETCH if controlled else now["fit"])
    if isinstance(before.get("tome"), dict):
        whole["tome"] = {**ToMeConfig().to_dict(), **before["tome"]}
    return whole


def _chunk_folders(path: Path) -> Iterator[Path]:
    """Those of all chunks that there ever were."""
    for folder in path.iterdir():
        if _CHUNK_FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            yield folder
            yield from _chunk_folders(folder)


def _with_progress(run: Run, file: PromptsFile, chunk: Chunk, manifest: Writer) -> Chunk:
    """Find out what has become of a chunk; where all is done and no name has changed, its manifest is not read."""
    folder, known = chunk.folder(run), chunk.progress
    if chunk.number == 1:
        return look_at(run, file, chunk, manifest)
    names = checksum_of_names(folder, hidden=True)
    if names is None:
        return replace(chunk, progress=chunk.untouched)
    if known and known.names == names and known.left == (0, 0) and (run.on_error == SKIP or not known.skipped):
        return chunk
    return look_at(run, file, chunk)
