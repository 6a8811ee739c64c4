"""Drawing what falls to one rank, batch by batch; every finished picture is written down at once."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.drawing.picture_files import write_picture
from ppdiffusers_tome.tools.many_prompts.batches import Batch, Kind
from ppdiffusers_tome.tools.many_prompts.folder import PICTURE_KEY, Part, entry_of, with_checksum
from ppdiffusers_tome.tools.many_prompts.prompts import STOP, Line
from ppdiffusers_tome.tools.measuring.out_of_memory import ran_out_of_memory

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.measuring.measure import Measured


class Artist(Protocol):
    """Who draws: a pipeline, its settings and its device."""

    def check(self, kind: Kind, line: Line) -> None:
        """Say what of a line cannot be drawn.

        Raises:
            UserError: its prompt is too long, or its control image is no picture.
        """

    def draw(self, kind: Kind, lines: Sequence[Line]) -> Measured[list[Image.Image]]:
        """A picture for each line, all computed together."""

    def describe(self, kind: Kind, line: Line) -> dict[str, Any]:
        """All that the line's picture is made with, as plain values."""

    def free(self) -> None:
        """Hand back memory that nothing uses any more."""


@dataclass
class Share:
    """What falls to one rank.

    Attributes:
        artist: draws.
        folder: where pictures go.
        part: where lines of the manifest go.
        run: checksum of the run.
        prompts: the file of prompts, to be named.
        on_error: ``stop`` or ``skip``, what follows a line that cannot be drawn.
        overwrite: whether a picture may replace another.
        say, warn: tell the user what was finished, and what should be known.
        drawn, skipped: how many so far.
    """

    artist: Artist
    folder: Path
    part: Part
    run: str
    prompts: Path
    on_error: str
    overwrite: bool
    say: Callable[[str], None]
    warn: Callable[[str], None]
    drawn: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        self._too_many: dict[Kind, int] = {}

    def draw(self, batches: Sequence[Batch], done: Container[int]) -> None:
        """Draw all that is not done.

        Where a part of a batch is done the whole is drawn again, as it was, and the rest of it written.

        Args:
            batches: in the order to draw them in.
            done: the numbers of lines whose pictures are there.

        Raises:
            UserError: a picture cannot be written, or a line cannot be drawn and ``on_error`` is ``stop``.
        """
        for batch in batches:
            lines = [line for line in batch.lines if self._can_be_drawn(batch.kind, line, done)]
            self._draw(batch.kind, lines, done)

    def _can_be_drawn(self, kind: Kind, line: Line, done: Container[int]) -> bool:
        try:
            self.artist.check(kind, line)
        except UserError as error:
            if line.number not in done:
                self._give_up(line, str(error))
            return False
        return True

    def _give_up(self, line: Line, error: str) -> None:
        if self.on_error == STOP:
            raise UserError(stopping(self.prompts, line.line, error))
        self.warn(f"--prompts {self.prompts}, line {line.line} is skipped: {error}")
        self.part.add({"skipped": line.line, "error": error})
        self.skipped += 1

    def _draw(self, kind: Kind, lines: Sequence[Line], done: Container[int]) -> None:
        left = [line for line in lines if line.number not in done]
        if not left:
            return
        drawn = None
        if len(lines) < self._too_many.get(kind, len(lines) + 1):
            drawn = self._try(kind, lines)
        if drawn is not None:
            seconds = drawn.seconds / len(lines)
            for line, picture in zip(lines, drawn.result, strict=True):
                if line.number not in done:
                    self._finish(kind, line, picture, lines, seconds)
        elif len(lines) == 1:
            self._give_up(lines[0], "the device has not enough memory for this one picture; make it smaller")
        else:
            # The same halves whether it failed just now or is known to: a run that goes on draws what one that was
            # never stopped would have drawn.
            half = (len(lines) + 1) // 2
            for some in (lines[:half], lines[half:]):
                self._draw(kind, some, done)

    def _try(self, kind: Kind, lines: Sequence[Line]) -> Measured[list[Image.Image]] | None:
        """The pictures; None where they do not fit in memory together, whose leavings are gone when this returns."""
        try:
            return self.artist.draw(kind, lines)
        except Exception as error:
            if not (isinstance(error, MemoryError) or ran_out_of_memory(str(error))):
                raise
        self._too_many[kind] = len(lines)
        self.artist.free()
        if len(lines) > 1:
            self.warn(f"out of memory with {len(lines)} pictures at once; going on with {(len(lines) + 1) // 2}")
        return None

    def _finish(
        self, kind: Kind, line: Line, picture: Image.Image, together: Sequence[Line], seconds: float
    ) -> None:
        """The picture first, then its line: whatever the manifest names is there."""
        path, described = self.folder / line.file, self.artist.describe(kind, line)
        entry = entry_of(line, picture.height, picture.width, described["ratio"], together)
        kept = {**described, PICTURE_KEY: {"run": self.run, "entry": entry}}
        write_picture(path, picture, kept, overwrite=self.overwrite)
        self.part.add(with_checksum(entry, path))
        self.drawn += 1
        self.say(f"{path}  {seconds:.2f} s")


def stopping(prompts: Path, line: int, error: str) -> str:
    """Why a run stops at a line."""
    return (
        f"--prompts {prompts}, line {line}: {error}; correct it and give the same command again, which goes on from "
        "there, or leave such lines out with --on-error skip"
    )
