"""Runs over files of prompts with a stand-in for the model, on one process that plays all ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.batches import Kind, form_batches
from ppdiffusers_tome.tools.batch.chunks import Chunk, read_index
from ppdiffusers_tome.tools.batch.finding import find_chunks, read_chunk
from ppdiffusers_tome.tools.batch.folder import rank_manifest
from ppdiffusers_tome.tools.batch.gathering import Gathering
from ppdiffusers_tome.tools.batch.line import Line
from ppdiffusers_tome.tools.batch.preparing import prepare_output
from ppdiffusers_tome.tools.batch.prompts import PromptsFile
from ppdiffusers_tome.tools.batch.ranks import Ranks
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.batch.shard import Shard
from ppdiffusers_tome.tools.batch.share import draw_share
from ppdiffusers_tome.tools.measure.json_lines import Writer

IDENTITY = {"model": "bundled", "batch_size": 2}
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


def asked(tmp_path: Path, *values: dict, output: str = "a", **settings) -> Run:
    """A run over a file of these lines."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": "p", **each}) for each in values))
    return Run(prompts, tmp_path / output, **{"identity": IDENTITY, **settings})


def chunks_of(run: Run) -> list[Chunk]:
    known = read_index(run.output) if run.output.exists() else {}
    return find_chunks(run, PromptsFile(run.prompts), known, lambda *_: None)


def lines_of(run: Run) -> list[Line]:
    file = PromptsFile(run.prompts)
    return [line for chunk in find_chunks(run, file, {}, lambda *_: None) for line in read_chunk(run, file, chunk)[0]]


def begin(run: Run) -> tuple[list[Chunk], Writer]:
    return prepare_output(run, PromptsFile(run.prompts), chunks_of(run))


class KilledError(Exception):
    """Raised where a process is killed."""


class Stopping(StandIn):
    """Draws so many batches and no more."""

    def __init__(self, batches: float) -> None:
        self.left = batches

    def draw(self, *given):
        if self.left < 1:
            raise KilledError
        self.left -= 1
        return super().draw(*given)


def run_ranks(run: Run, order: Sequence[int] = (0,), *, batches: float = float("inf")) -> int:
    """Ranks that draw one after the other in that order, of which the last draws so many batches and is killed; returns
    how many pictures they drew."""
    file = PromptsFile(run.prompts)
    chunks, manifest = begin(run)
    gathering, drawn = Gathering(run, list(chunks), manifest), 0
    with manifest:
        for rank in order:
            is_last = rank == order[-1]
            shard = Shard(Stopping(batches if is_last else float("inf")), run, tqdm(disable=True))
            ranks = Ranks(rank, len(order))
            try:
                if rank == 0:
                    draw_share(run, file, ranks, chunks, manifest, shard, gathering.drawn)
                else:
                    with rank_manifest(run.output, rank) as own:
                        draw_share(run, file, ranks, chunks, own, shard, lambda *_: None)
            except KilledError:
                return drawn + shard.drawn
            drawn += shard.drawn
        gathering.end()
    return drawn


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def whole_run(run: Run, order: Sequence[int] = (0,)) -> dict[str, bytes]:
    run_ranks(run, order)
    return contents(run.output)


def finish(run: Run, line: Line, part: Writer) -> None:
    """Write a picture as a rank does."""
    (batch,) = form_batches([line], 1)
    Shard(StandIn(), run, tqdm(disable=True)).draw(run.output, part, [batch], ())
