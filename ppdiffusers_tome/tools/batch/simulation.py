"""A simulation of many ranks on a file of very many prompts: a few of their processes run at a time. Knows no Paddle.

Nothing is drawn and no group of processes is made; files are read, dealt, written, gathered and found again as by real
ranks. It shows what that takes of time, memory and folders.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.batch import simulated_rank
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.batch.simulated_rank import Report


@dataclass(frozen=True)
class Simulated:
    """What ranks reported.

    Attributes:
        started: when they were ready to draw, rank 0 first.
        drawn: when they had drawn all; nothing where they were killed.
        gathered: rank 0's at the end; None where it was killed.
        most_files: the most files and folders that a folder held when they ended.
    """

    started: Sequence[Report]
    drawn: Sequence[Report]
    gathered: Report | None
    most_files: int


def write_prompts(path: Path, lines: int) -> None:
    """Write a file of so many prompts, all different, about 90 bytes each."""
    with path.open("w") as file:
        for number in range(lines):
            file.write(f'{{"prompt": "a photo of a cat, picture {number}", "seed": {number % 9973}}}\n')


def simulate(run: Run, size: int, at_once: int, most_turns: int | None = None) -> Simulated:
    """Let so many ranks draw what is left.

    Args:
        run: what is asked for.
        size: how many ranks.
        at_once: how many of them run at a time; the others wait before their next chunk.
        most_turns: kill all when they have begun so many chunks together; None lets them finish.
    """
    with _Group() as group:
        started = [group.start(run, rank, size) for rank in range(size)]
        drawn = group.give_turns(at_once, most_turns)
        gathered = None
        if len(drawn) == size:
            group.ranks[0].send("gather")
            gathered = group.ranks[0].recv()
            group.join()
    return Simulated(started, drawn, gathered, _most_files(run.output))


def start_alone(run: Run) -> Report:
    """Let one rank start, and end it when it is ready to draw."""
    with _Group() as group:
        return group.start(run, 0, 1)


@dataclass
class _Group:
    """The processes of ranks; none is left when this ends."""

    ranks: list[Connection] = field(default_factory=list)
    _processes: list[BaseProcess] = field(default_factory=list)

    def start(self, run: Run, rank: int, size: int) -> Report:
        """Start a rank, and wait until it is ready to draw."""
        context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
        context.set_forkserver_preload([simulated_rank.__name__])
        ours, theirs = context.Pipe()
        process = context.Process(target=simulated_rank.run_rank, args=(theirs, run, rank, size), daemon=True)
        process.start()
        theirs.close()
        self._processes.append(process)
        self.ranks.append(ours)
        return ours.recv()

    def give_turns(self, at_once: int, most: int | None) -> list[Report]:
        """Let ranks go on in turn until all have drawn all, or have begun so many chunks; returns what they report."""
        waiting, going, turns = deque(self.ranks), set[Connection](), 0
        reports: list[Report] = []
        while waiting or going:
            while waiting and len(going) < at_once:
                rank = waiting.popleft()
                rank.send("go on")
                going.add(rank)
            ready = wait(list(going))
            for rank in [rank for rank in going if rank in ready]:
                going.remove(rank)
                said = rank.recv()
                if isinstance(said, Report):
                    reports.append(said)
                else:
                    waiting.append(rank)
                    turns += 1
            if most is not None and turns >= most:
                return []
        return reports

    def join(self) -> None:
        """Wait until all have ended."""
        for process in self._processes:
            process.join()

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        self.join()


def _most_files(folder: Path) -> int:
    return max(len(folders) + len(files) for _, folders, files in os.walk(folder))
