"""A training that may be killed at any moment: its budget, its loss curve and its checkpoint.

A run has stages, one after another, each with a name and a budget. ``checkpoint.pt`` holds the weights, their average,
the optimiser and the step that was reached; started again, a run goes on from there. What chance decides is drawn
anew at every step from the seed, the stage and the step's number, so no generator's state need be kept.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stages import finished_stages, lock, note_finished, write_rows

CHECKPOINT_MINUTES = 4.0
ROW_STEPS = 20  # a row of the loss curve is the mean of so many steps
CORES = os.cpu_count() or 1
TRIED_EVERY = {CORES: 100, 1: 20}  # steps after which the number of threads is chosen anew, by what was chosen


class Run:
    """One stage of a training.

    The budget counts minutes of processor time divided by cores: what a machine that does nothing else would show on
    its clock. So a run that gives way to other programs is not cut short.

    Args:
        output: folder of the run.
        stage: the stage's name.
        minutes: its budget.
        seed: where all chance comes from.
        held: models, and the optimiser under the name ``optimiser``, by the names they get in the checkpoint. A new
            stage takes the models over from the stage before, not the optimiser.
    """

    def __init__(self, output: Path, stage: str, minutes: float, seed: int, **held: Any) -> None:
        output.mkdir(parents=True, exist_ok=True)
        lock(output)
        self.output, self.stage, self.minutes, self.seed, self.held = output, stage, minutes, seed, held
        self.steps, self._spent = 0, 0.0
        self._rows = output / "loss.jsonl"
        self._window: list[dict[str, float]] = []
        self._threads = Threads()
        self.finished = stage in finished_stages(output)
        if not self.finished:
            self._load()
            self._drop_lost_rows()
        self._began, self._saved = time.process_time(), time.time()
        self._row_began = self._began

    @property
    def spent_minutes(self) -> float:
        return self._spent + (time.process_time() - self._began) / 60 / CORES

    @property
    def progress(self) -> float:
        return self.spent_minutes / self.minutes

    @property
    def running(self) -> bool:
        return not self.finished and self.progress < 1.0

    def chance(self) -> np.random.Generator:
        """Begin a step: its generator. Seeds PyTorch's too."""
        self._threads.choose()
        words = [self.seed, zlib.crc32(self.stage.encode()), self.steps]
        torch.manual_seed(zlib.crc32(str(words).encode()))
        return np.random.default_rng(words)

    def step(self, **values: float) -> bool:
        """Count a step and note its losses; True where a checkpoint was saved."""
        self.steps += 1
        self._window.append(values)
        if len(self._window) == ROW_STEPS:
            self._write_row()
        if time.time() - self._saved < 60 * CHECKPOINT_MINUTES:
            return False
        self.save()
        return True

    def save(self) -> None:
        """Write the checkpoint; one that is cut off leaves the last one whole."""
        states = {name: each.state_dict() for name, each in self.held.items()}
        new = self.output / "checkpoint.new"
        torch.save({"stage": self.stage, "steps": self.steps, "minutes": self.spent_minutes, "states": states}, new)
        os.replace(new, self.output / "checkpoint.pt")
        self._saved = time.time()

    def finish(self, **facts: Any) -> None:
        """Note that the stage is done, with what there is to say of it."""
        self.save()
        row = {"steps": self.steps, "minutes": round(self.spent_minutes, 1), "ended": _now(), **facts}
        note_finished(self.output, self.stage, row)
        self.finished = True

    def _load(self) -> None:
        file = self.output / "checkpoint.pt"
        if not file.exists():
            return
        kept = torch.load(file, weights_only=True)
        same = kept["stage"] == self.stage
        for name, each in self.held.items():
            if same or name != "optimiser":
                each.load_state_dict(kept["states"][name])
        if same:
            self.steps, self._spent = kept["steps"], kept["minutes"]
        print(f"resumed from stage {kept['stage']}, step {kept['steps']}; {_now()}", flush=True)

    def _drop_lost_rows(self) -> None:
        """Steps after the checkpoint are done again, so their rows go."""
        if self._rows.exists():
            rows = [json.loads(line) for line in self._rows.read_text().splitlines()]
            write_rows(self._rows, [row for row in rows if row["stage"] != self.stage or row["step"] <= self.steps])

    def _write_row(self) -> None:
        means = {k: round(float(np.mean([w[k] for w in self._window])), 5) for k in self._window[0]}
        now = time.process_time()
        seconds = (now - self._row_began) / ROW_STEPS
        row = {"stage": self.stage, "step": self.steps, "minutes": round(self.spent_minutes, 2),
               "core_seconds_per_step": round(seconds, 3), "threads": torch.get_num_threads(),
               **means}
        with self._rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
        self._window.clear()
        self._row_began = now


class Threads:
    """One thread, or one a core, whichever is faster now.

    Threads wait for one another many times in a step. Where other programs take a core, all wait for the thread that
    is kept from it, and one alone is up to twice as fast. What keeps it is often gone soon.
    """

    def __init__(self) -> None:
        self._began, self._steps = 0.0, 0
        self._seconds: dict[int, float] = {}

    def choose(self) -> None:
        """Called as each step begins: now and then two steps are timed with either number."""
        now = time.time()
        tried = [CORES, CORES, 1, 1]
        at, self._steps = self._steps, self._steps + 1
        if at in (2, 4):  # of two steps the second counts: the first may have to make plans for its threads
            self._seconds[tried[at - 1]] = now - self._began
        self._began = now
        if at < len(tried):
            torch.set_num_threads(tried[at])
            return
        best = min(self._seconds, key=self._seconds.__getitem__)
        torch.set_num_threads(best)
        if at >= TRIED_EVERY[best]:
            self._steps = 0


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
