"""What rank 0 does when chunks are finished: one manifest of all ranks' parts. Knows no Paddle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ppdiffusers_tome.tools.batch.chunks import (
    CONTROLLED,
    INDEX,
    Chunk,
    Progress,
    checksum_of_names,
    write_index,
)
from ppdiffusers_tome.tools.batch.folder import MANIFEST, OutputFolder
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.measure.json_lines import Writer, parts_of


@dataclass
class Gathering:
    """The chunks of a run, gathered as they are finished, so that a run that is killed leaves little to be gathered.

    Attributes:
        run: what is asked for.
        chunks: with their progress, as the folder's index has them.
        manifest: rank 0's part of the first chunk's manifest.
    """

    run: Run
    chunks: list[Chunk]
    manifest: Writer
    _begun: list[int] = field(default_factory=list)  # places of those that are being drawn, in their order

    def drawn(self, place: int, kind: int) -> None:
        """Rank 0 has drawn its share of a chunk's lines of a kind; gather what all have drawn by now."""
        if kind == CONTROLLED or not self.chunks[place].left[CONTROLLED]:
            self._begun.append(place)
        finished = 0
        while self._begun and self._is_written(self.chunks[self._begun[0]]):
            self._gather(self._begun.pop(0), self.manifest)
            finished += 1
        if finished:
            write_index(self.run.output, self.chunks)

    def end(self) -> None:
        """All ranks have drawn all that was left."""
        for place in {0, *self._begun}:  # the first has parts of all ranks, which keep others out meanwhile
            self._gather(place, None)
        self._begun.clear()
        if len(self.chunks) > 1:
            write_index(self.run.output, self.chunks)
        else:
            (self.run.output / INDEX).unlink(missing_ok=True)

    def _is_written(self, chunk: Chunk) -> bool:
        """Whether the ranks' parts have a line for each that was left."""
        parts = parts_of(chunk.folder(self.run) / MANIFEST)
        return sum(part.read_bytes().count(b"\n") for part in parts) >= sum(chunk.left)

    def _gather(self, place: int, own: Writer | None) -> None:
        chunk = self.chunks[place]
        folder = OutputFolder(chunk.folder(self.run))
        folder.gather(own)
        numbers, settled = range(chunk.number, chunk.number + chunk.entries), folder.settled
        drawn = sum(number in folder.entries and number not in folder.skipped for number in numbers)
        left = sum(number not in settled for number in numbers)
        again = sum(bad.again for bad in folder.skipped.values())
        names = checksum_of_names(folder.path, hidden=False) if chunk.number > 1 else None
        progress = Progress(drawn, len(folder.skipped), (left + again, 0), names)
        self.chunks[place] = replace(chunk, progress=progress)
