"""Drawing what falls to one rank, batch by batch; every finished picture is written down at once."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.console.output import print_line, warn
from ppdiffusers_tome.tools.drawing.picture_files import write_picture
from ppdiffusers_tome.tools.many_prompts.batches import Batch, Kind
from ppdiffusers_tome.tools.many_prompts.folder import PICTURE_KEY, entry_of, with_checksum
from ppdiffusers_tome.tools.many_prompts.line import STOP, BadLine, Line
from ppdiffusers_tome.tools.measuring.clock import DeviceClock
from ppdiffusers_tome.tools.measuring.json_lines import Writer
from ppdiffusers_tome.tools.measuring.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from PIL import Image
    from tqdm import tqdm

    from ppdiffusers_tome.tools.many_prompts.line_pipeline import LinePipeline


@dataclass
class Shard:
    """What falls to one rank.

    Attributes:
        pipeline: draws the lines.
        folder: where pictures go.
        manifest: where this rank's lines of the manifest go.
        run: checksum of the run.
        prompts: the file of prompts, to be named.
        on_error: ``stop`` or ``skip``, what follows a line that cannot be drawn.
        overwrite: whether a picture may replace another.
        bar: moves on by one a picture.
        drawn: how many pictures so far.
    """

    pipeline: LinePipeline
    folder: Path
    manifest: Writer
    run: str
    prompts: Path
    on_error: str
    overwrite: bool
    bar: tqdm
    drawn: int = 0
    _too_many: dict[Kind, int] = field(default_factory=dict)  # at once, for the memory there is

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
            self.pipeline.check(kind, line)
        except UserError as error:
            if line.number not in done:
                self._give_up(line, str(error))
            return False
        return True

    def _give_up(self, line: Line, error: str) -> None:
        bad = BadLine(line.line, error)
        if self.on_error == STOP:
            raise UserError(bad.stopping(self.prompts))
        warn(bad.skipping(self.prompts))
        self.manifest.add({"skipped": bad.line, "error": bad.error})

    def _draw(self, kind: Kind, lines: Sequence[Line], done: Container[int]) -> None:
        if all(line.number in done for line in lines):
            return
        pictures, clock = None, DeviceClock()
        if len(lines) < self._too_many.get(kind, len(lines) + 1):
            pictures = self._try(kind, lines)
        if pictures is not None:
            seconds = clock.lap() / len(lines)
            for line, picture in zip(lines, pictures, strict=True):
                if line.number not in done:
                    self._finish(kind, line, picture, [each.number for each in lines], seconds)
        elif len(lines) == 1:
            self._give_up(lines[0], "the device has not enough memory for this one picture; make it smaller")
        else:
            # The same halves whether it failed just now or is known to: a run that resumes draws what one that was
            # never stopped would have drawn.
            half = (len(lines) + 1) // 2
            for some in (lines[:half], lines[half:]):
                self._draw(kind, some, done)

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
            warn(f"out of memory with {len(lines)} pictures at once; going on with {(len(lines) + 1) // 2}")
        return None

    def _finish(self, kind: Kind, line: Line, picture: Image.Image, batch: Sequence[int], seconds: float) -> None:
        """The picture first, then its line: whatever the manifest names is there."""
        path, described = self.folder / line.file, self.pipeline.describe(kind, line)
        entry = entry_of(line, picture.height, picture.width, described["ratio"], batch)
        kept = {**described, PICTURE_KEY: {"run": self.run, "entry": entry}}
        write_picture(path, picture, kept, overwrite=self.overwrite)
        self.manifest.add(with_checksum(entry, path))
        self.drawn += 1
        print_line(f"{path}  {seconds:.2f} s")
        self.bar.update()
