"""Drawing what falls to one rank, batch by batch; every finished picture is written down at once."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.batches import Batch, Kind
from ppdiffusers_tome.tools.batch.folder import PICTURE_KEY, entry_of, with_checksum
from ppdiffusers_tome.tools.batch.line import STOP, BadLine, Line
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.cli.console.output import print_line, warn
from ppdiffusers_tome.tools.images import write_image
from ppdiffusers_tome.tools.measure.json_lines import Writer
from ppdiffusers_tome.tools.measure.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from PIL import Image
    from tqdm import tqdm


class Draws(Protocol):
    """What draws lines: ``LinePipeline``, which says what its methods are for."""

    def load(self, kind: Kind) -> Any: ...
    def check(self, kind: Kind, line: Line) -> None: ...
    def draw(self, kind: Kind, lines: Sequence[Line]) -> list[Image.Image]: ...
    def describe(self, kind: Kind, line: Line) -> dict[str, Any]: ...
    def free_memory(self) -> None: ...
    def clock(self) -> Clock: ...


class Clock(Protocol):
    """As ``DeviceClock``."""

    def lap(self) -> float: ...


@dataclass(frozen=True)
class _Place:
    """As in ``Shard.draw``."""

    folder: Path
    manifest: Writer
    done: Container[int]


@dataclass
class Shard:
    """What falls to one rank.

    Attributes:
        pipeline: draws the lines.
        run: what is asked for.
        bar: moves on by one a picture.
        drawn: how many pictures so far.
        clock: runs from the moment when the first pipeline was loaded.
    """

    pipeline: Draws
    run: Run
    bar: tqdm
    drawn: int = 0
    clock: Clock | None = None
    _too_many: dict[Kind, int] = field(default_factory=dict)  # at once, for the memory there is

    def draw(self, folder: Path, manifest: Writer, batches: Sequence[Batch], done: Container[int]) -> None:
        """Draw all that is not done.

        Where a part of a batch is done the whole is drawn again, as it was, and the rest of it written.

        Args:
            folder: where pictures go.
            manifest: where this rank's lines of that folder's manifest go.
            batches: in the order to draw them in.
            done: the numbers of lines whose pictures are there.

        Raises:
            UserError: a picture cannot be written, or a line cannot be drawn and the run stops at such.
        """
        place = _Place(folder, manifest, done)
        for batch in batches:
            self.pipeline.load(batch.kind)  # what cannot be loaded is no line's fault
            if self.clock is None:
                self.clock = self.pipeline.clock()
            lines = [line for line in batch.lines if self._can_be_drawn(batch.kind, line, place)]
            self._draw(batch.kind, lines, place)

    def _can_be_drawn(self, kind: Kind, line: Line, place: _Place) -> bool:
        try:
            self.pipeline.check(kind, line)
        except UserError as error:
            if line.number not in place.done:
                self._give_up(line, str(error), place, again=kind.controlled)  # its picture may come
            return False
        return True

    def _give_up(self, line: Line, error: str, place: _Place, *, again: bool) -> None:
        bad = BadLine(line.number, line.line, error, again)
        if self.run.on_error == STOP:
            raise UserError(bad.stopping(self.run.prompts))
        warn(bad.skipping(self.run.prompts))
        place.manifest.add(vars(bad))

    def _draw(self, kind: Kind, lines: Sequence[Line], place: _Place) -> None:
        if all(line.number in place.done for line in lines):
            return
        pictures, clock = None, self.pipeline.clock()
        if len(lines) < self._too_many.get(kind, len(lines) + 1):
            pictures = self._try(kind, lines)
        if pictures is not None:
            seconds = clock.lap() / len(lines)
            for line, picture in zip(lines, pictures, strict=True):
                if line.number not in place.done:
                    self._finish(kind, line, picture, [each.number for each in lines], seconds, place)
        elif len(lines) == 1:
            error = "the device has not enough memory for this one picture; make it smaller"
            self._give_up(lines[0], error, place, again=True)
        else:
            # The same halves whether it failed just now or is known to: a run that resumes draws what one that was
            # never stopped would have drawn.
            half = (len(lines) + 1) // 2
            for some in (lines[:half], lines[half:]):
                self._draw(kind, some, place)

    def _try(self, kind: Kind, lines: Sequence[Line]) -> list[Image.Image] | None:
        """The pictures; None where they do not fit in memory together, whose leavings are gone when this returns."""
        try:
            return self.pipeline.draw(kind, lines)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._too_many[kind] = len(lines)
        self.pipeline.free_memory()
        if len(lines) > 1:
            warn(f"out of memory with {len(lines)} pictures at once; continuing with {(len(lines) + 1) // 2}")
        return None

    def _finish(
        self, kind: Kind, line: Line, picture: Image.Image, batch: Sequence[int], seconds: float, place: _Place
    ) -> None:
        """The picture first, then its line: whatever the manifest names is there."""
        path, described = place.folder / line.file, self.pipeline.describe(kind, line)
        entry = entry_of(line, picture.height, picture.width, described["ratio"], batch)
        kept = {**described, PICTURE_KEY: {"run": self.run.checksum, "entry": entry}}
        write_image(path, picture, kept, overwrite=self.run.overwrite)
        place.manifest.add(with_checksum(entry, path))
        self.drawn += 1
        print_line(f"{path}  {seconds:.2f} s")
        self.bar.update()
