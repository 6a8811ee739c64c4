"""Stages of a training that may be killed at any moment.

A stage has a name, a time budget and a loss curve. ``checkpoint.pt`` holds the weights, their average, the state of the
optimiser and the number of steps; a restarted run continues from there. Every step gets its random numbers from the
seed, the stage and the step's number, so no generator's state is saved.
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
from stages import lock_folder, read_finished_stages, record_finished_stage, write_rows

CHECKPOINT_MINUTES = 4.0
ROW_STEPS = 20  # a row of the loss curve is the mean of this many steps
CORES = os.cpu_count() or 1
RETRY_STEPS = {CORES: 100, 1: 20}  # steps until the number of threads is chosen again, by the number in use


class Run:
    """One stage of a training.

    The budget is processor time divided by cores, in minutes: the time on an otherwise idle machine. So a run that
    shares its machine trains for as long.

    Args:
        output: folder of the run.
        stage: the stage's name.
        minutes: its budget.
        seed: of all random numbers.
        objects: models, and the optimiser under the name ``optimiser``, by their names in the checkpoint. A new stage
            continues the models of the previous stage, not its optimiser.
    """

    def __init__(self, output: Path, stage: str, minutes: float, seed: int, **objects: Any) -> None:
        output.mkdir(parents=True, exist_ok=True)
        lock_folder(output)
        self.output, self.stage, self.minutes, self.seed, self.objects = output, stage, minutes, seed, objects
        self.steps, self._earlier_minutes = 0, 0.0
        self._rows = output / "loss.jsonl"
        self._window: list[dict[str, float]] = []
        self._threads = Threads()
        self.is_finished = stage in read_finished_stages(output)
        if not self.is_finished:
            self._load()
            self._drop_lost_rows()
        self._start, self._last_save = time.process_time(), time.time()
        self._row_start = self._start

    @property
    def spent_minutes(self) -> float:
        return self._earlier_minutes + (time.process_time() - self._start) / 60 / CORES

    @property
    def progress(self) -> float:
        return self.spent_minutes / self.minutes

    @property
    def is_running(self) -> bool:
        return not self.is_finished and self.progress < 1.0

    def start_step(self) -> np.random.Generator:
        """Seed PyTorch for the next step, and return the step's generator."""
        self._threads.choose()
        key = [self.seed, zlib.crc32(self.stage.encode()), self.steps]
        torch.manual_seed(zlib.crc32(str(key).encode()))
        return np.random.default_rng(key)

    def end_step(self, **values: float) -> None:
        """Record the step's losses; now and then, save a checkpoint."""
        self.steps += 1
        self._window.append(values)
        if len(self._window) == ROW_STEPS:
            self._write_row()
        if time.time() - self._last_save >= 60 * CHECKPOINT_MINUTES:
            self.save()

    def save(self) -> None:
        """Replace the checkpoint; if that is interrupted, the previous one stays."""
        states = {name: item.state_dict() for name, item in self.objects.items()}
        new = self.output / "checkpoint.new"
        torch.save({"stage": self.stage, "steps": self.steps, "minutes": self.spent_minutes, "states": states}, new)
        os.replace(new, self.output / "checkpoint.pt")
        self._last_save = time.time()

    def finish(self, **results: Any) -> None:
        """Save the checkpoint and record the stage as finished, with its results."""
        self.save()
        row = {"steps": self.steps, "minutes": round(self.spent_minutes, 1), "ended": _format_now(), **results}
        record_finished_stage(self.output, self.stage, row)
        self.is_finished = True

    def _load(self) -> None:
        file = self.output / "checkpoint.pt"
        if not file.exists():
            return
        checkpoint = torch.load(file, weights_only=True)
        is_same_stage = checkpoint["stage"] == self.stage
        for name, item in self.objects.items():
            if is_same_stage or name != "optimiser":
                item.load_state_dict(checkpoint["states"][name])
        if is_same_stage:
            self.steps, self._earlier_minutes = checkpoint["steps"], checkpoint["minutes"]
        print(f"resumed from stage {checkpoint['stage']}, step {checkpoint['steps']}; {_format_now()}", flush=True)

    def _drop_lost_rows(self) -> None:
        """Drop the rows of steps after the checkpoint, which will be repeated."""
        if self._rows.exists():
            rows = [json.loads(line) for line in self._rows.read_text().splitlines()]
            write_rows(self._rows, [row for row in rows if row["stage"] != self.stage or row["step"] <= self.steps])

    def _write_row(self) -> None:
        means = {name: round(float(np.mean([step[name] for step in self._window])), 5) for name in self._window[0]}
        now = time.process_time()
        row = {
            "stage": self.stage,
            "step": self.steps,
            "minutes": round(self.spent_minutes, 2),
            "core_seconds_per_step": round((now - self._row_start) / ROW_STEPS, 3),
            "threads": torch.get_num_threads(),
            **means,
        }
        with self._rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
        self._window.clear()
        self._row_start = now


class Threads:
    """One thread or one per core, whichever is faster at the moment.

    Threads wait for each other many times in a step. If another program occupies a core, all wait for the thread of
    that core, and a single thread is up to twice as fast. Such programs often end soon, so the choice is repeated.
    """

    def __init__(self) -> None:
        self._start, self._steps = 0.0, 0
        self._seconds: dict[int, float] = {}

    def choose(self) -> None:
        """Set the number of threads for the next step, sometimes to measure it."""
        now = time.time()
        trials = [CORES, CORES, 1, 1]
        step, self._steps = self._steps, self._steps + 1
        if step in (2, 4):  # the second of two steps counts: the first may include setting up its threads
            self._seconds[trials[step - 1]] = now - self._start
        self._start = now
        if step < len(trials):
            torch.set_num_threads(trials[step])
            return
        fastest = min(self._seconds, key=self._seconds.__getitem__)
        torch.set_num_threads(fastest)
        if step >= RETRY_STEPS[fastest]:
            self._steps = 0


def _format_now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
