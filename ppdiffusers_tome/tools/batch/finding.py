"""Finding the chunks of a file of prompts, and reading one. Knows no Paddle.

A file is gone through once, before anything is drawn, and all its lines are checked; a later run compares checksums of
what is known, and reads what is new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.chunks import Chunk
from ppdiffusers_tome.tools.batch.line import STOP, BadLine, Line
from ppdiffusers_tome.tools.batch.prompts import Piece, PromptsFile, lines_of
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.measure.clock import garbage_kept

Report = Callable[[Chunk, Sequence[BadLine]], None]


def find_chunks(
    run: Run, file: PromptsFile, known: Mapping[int, Chunk], report: Report,
    check: Callable[[Line], None] | None = None,
) -> list[Chunk]:  # fmt: skip
    """Go through a file of prompts, and check all lines that are not known to be in order.

    Args:
        run: says what lines are checked with.
        file: the file.
        known: chunks of an earlier run, by their numbers. Where the file says the same they are taken over.
        report: told of each chunk with bad lines; may raise what ends it.
        check: raises a ``UserError`` for lines that are in order and cannot be drawn all the same. For a run that such
            lines end, as chunks do not keep what it found.

    Raises:
        UserError: the file as a whole cannot be used.
    """
    chunks: list[Chunk] = []
    number, line, offset = 1, file.line, file.offset
    while True:
        with garbage_kept():  # which there is none of; looking for it takes a fifth of the time
            chunk = _known_at(run, file, offset, line, known.get(number))
            if chunk is None:
                piece = file.piece(offset, line, run.images_per_folder)
                if not piece.entries:
                    break
                chunk = _chunk_of(run, file, piece, (number, line, offset), known.get(number), report, check)
        chunks.append(chunk)
        number, line, offset = number + chunk.entries, line + chunk.lines, offset + chunk.length
    if not chunks:
        raise UserError(f"--prompts {file.path} holds no prompt; write one per line")
    return chunks


def read_chunk(run: Run, file: PromptsFile, chunk: Chunk) -> tuple[list[Line], list[BadLine]]:
    """The lines of a chunk that can be drawn, and those that cannot.

    Raises:
        UserError: the file does not say what it said when the chunk was found.
    """
    content = file.read(chunk.offset, chunk.length)
    if _checksum(run, file, content, chunk.number, chunk.entries, chunk.lines) != chunk.checksum:
        raise UserError(
            f"--prompts {file.path} is not the same file on all machines, or was changed since the run began; give "
            "all the same one, and the same command again"
        )
    return lines_of(run, file.entries(content, chunk.line), chunk.number)


def _known_at(run: Run, file: PromptsFile, offset: int, line: int, known: Chunk | None) -> Chunk | None:
    """A known chunk, if it need not be read again: it is there, with the same bytes, and its last line ends there."""
    if known is None or (known.offset, known.line) != (offset, line) or (known.bad and run.on_error == STOP):
        return None
    content = file.read(offset, known.length + 1)
    if len(content) > known.length and (known.entries < run.images_per_folder or content[-2:-1] != b"\n"):
        return None
    checksum = _checksum(run, file, content[: known.length], known.number, known.entries, known.lines)
    return known if checksum == known.checksum else None


def _chunk_of(
    run: Run, file: PromptsFile, piece: Piece, at: tuple[int, int, int], known: Chunk | None, report: Report,
    check: Callable[[Line], None] | None,
) -> Chunk:  # fmt: skip
    number, line, offset = at
    lines, bad = lines_of(run, piece.entries, number)
    if check is not None:
        bad = sorted([*bad, *_refused(lines, check)], key=lambda each: each.number)
    checksum = _checksum(run, file, piece.content, number, len(piece.entries), piece.lines)
    chunk = Chunk(
        number, len(piece.entries), line, piece.lines, offset, len(piece.content), checksum,
        sum(map(run.is_controlled, lines)), len(bad),
        known.progress if known is not None and known.checksum == checksum else None,
    )  # fmt: skip
    if bad:
        report(chunk, bad)
    return chunk


def _refused(lines: Sequence[Line], check: Callable[[Line], None]) -> Iterator[BadLine]:
    for line in lines:
        try:
            check(line)
        except UserError as error:
            yield BadLine(line.number, line.line, str(error), again=True)


def _checksum(run: Run, file: PromptsFile, content: bytes, *numbers: int) -> str:
    read_with = json.dumps([run.checksum, run.first_seed, file.columns, numbers])
    return hashlib.sha256(read_with.encode() + content).hexdigest()[:32]
