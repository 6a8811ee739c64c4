"""One rank of a simulation: all of a real one but the model, the device and Paddle's process group. Knows no Paddle."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.batches import Kind
from ppdiffusers_tome.tools.batch.chunks import read_index
from ppdiffusers_tome.tools.batch.finding import find_chunks
from ppdiffusers_tome.tools.batch.folder import rank_manifest
from ppdiffusers_tome.tools.batch.gathering import Gathering
from ppdiffusers_tome.tools.batch.line import Line
from ppdiffusers_tome.tools.batch.preparing import prepare_output
from ppdiffusers_tome.tools.batch.prompts import PromptsFile
from ppdiffusers_tome.tools.batch.ranks import Ranks
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.batch.shard import Shard
from ppdiffusers_tome.tools.batch.share import draw_share
from ppdiffusers_tome.tools.measure.measure import ResidentMemory

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")
TOO_LONG = "a prompt that is too long"  # so begin prompts that the stand-in refuses


class StandIn:
    """Stands in for ``LinePipeline``: draws small squares of one colour, another for every batch of lines."""

    def load(self, kind: Kind) -> None:
        """There is nothing to load."""

    def check(self, kind: Kind, line: Line) -> None:
        """Find out whether a line can be drawn.

        Raises:
            UserError: it begins with ``TOO_LONG``.
        """
        if line.prompt.startswith(TOO_LONG):
            raise UserError("prompt is too long for the stand-in; shorten it")

    def draw(self, kind: Kind, lines: Sequence[Line]) -> list[Image.Image]:
        """A picture for each line, which depends on all of them and on their order."""
        from PIL import Image

        batch = 0
        for line in lines:
            batch = (batch * 31 + line.seed) % 2**16
        return [Image.new("RGB", (8, 8), (batch >> 8, batch & 255, line.seed % 256)) for line in lines]

    def describe(self, kind: Kind, line: Line) -> dict[str, Any]:
        """What the line's picture is made with."""
        return {"model": "stand-in", "prompt": line.prompt, "seed": line.seed, "ratio": kind.ratio}

    def free_memory(self) -> None:
        """There is none to hand back."""

    def clock(self) -> WallClock:
        """One that begins now."""
        return WallClock()


@dataclass
class WallClock:
    """Runs from the moment it is made."""

    began: float = field(default_factory=time.perf_counter)

    def lap(self) -> float:
        """Seconds since it was made, or since the lap before."""
        before, self.began = self.began, time.perf_counter()
        return self.began - before


@dataclass(frozen=True)
class Turns(Ranks):
    """A rank that waits for its turn before every chunk, so that few of many processes run at a time."""

    asking: Connection | None = None

    def shard(self, things: Sequence[T], turn: int = 0) -> list[T]:
        """As that of a real rank, when the other end says so."""
        if self.asking is not None:
            self.asking.send("next")
            self.asking.recv()
        return super().shard(things, turn)


@dataclass(frozen=True)
class Report:
    """What a rank says when it is ready to draw, and when it has drawn.

    Attributes:
        seconds: since it began, or since it was told to go on.
        peak_bytes: the most memory that the process, with Python, has had; None when it could not be measured.
        drawn: how many pictures there are, of all ranks where it is rank 0, of its own otherwise.
    """

    seconds: float
    peak_bytes: int | None
    drawn: int


def run_rank(asking: Connection, run: Run, rank: int, size: int) -> None:
    """The process of a rank, which sends a ``Report`` when it is ready to draw, and one when it has drawn.

    Between them it asks for its turns; rank 0 then is asked to gather, and sends a third.

    Args:
        asking: the other end gives turns.
        run: what is asked for.
        rank, size: which rank it is, of how many; rank 0 has prepared the folder before others begin.
    """
    # Paddle's launcher says it so. A million small files that are flushed would say more of the disk than of ranks.
    os.environ.update(PADDLE_TRAINER_ID=str(rank), PADDLE_TRAINERS_NUM=str(size))
    setattr(os, "fsync", _not_flushed)  # noqa: B010
    with open(os.devnull, "w") as nobody:
        os.dup2(nobody.fileno(), 1)
    memory, clock = ResidentMemory(), WallClock()
    memory.reset()
    ranks, file = Turns(rank, size, asking), PromptsFile(run.prompts)
    gathering = None
    if ranks.is_first:
        known = find_chunks(run, file, read_index(run.output), lambda *_: None)
        chunks, manifest = prepare_output(run, file, known)
        gathering = Gathering(run, list(chunks), manifest)
    else:
        chunks, manifest = list(read_index(run.output).values()), rank_manifest(run.output, rank)
    there = sum(chunk.progress.drawn for chunk in chunks if chunk.progress)
    asking.send(Report(clock.lap(), memory.peak_bytes(), there))
    with manifest:
        asking.recv()
        tqdm.set_lock(threading.RLock())  # of the lock that it makes otherwise something is left when this is killed
        shard = Shard(StandIn(), run, tqdm(disable=True))
        draw_share(run, file, ranks, chunks, manifest, shard, gathering.drawn if gathering else lambda *_: None)
        asking.send(Report(clock.lap(), memory.peak_bytes(), shard.drawn))
        if gathering is not None:
            asking.recv()
            clock.lap()
            gathering.end()
            there = sum(chunk.progress.drawn for chunk in gathering.chunks if chunk.progress)
            asking.send(Report(clock.lap(), memory.peak_bytes(), there))


def _not_flushed(file: Any) -> None:
    """In place of ``os.fsync``."""
