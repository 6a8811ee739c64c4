"""What the training scripts share: the clock and the loss curve. Needs PyTorch; no script needs Paddle beside it."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import torch


def start(seed: int, output: str) -> tuple[np.random.Generator, Path]:
    """Seed everything and make the output folder."""
    torch.manual_seed(seed)
    path = Path(output)
    path.mkdir(parents=True, exist_ok=True)
    return np.random.default_rng(seed), path


class Log:
    """The budget of a run in minutes, and its loss curve: one JSON line every 20 steps in ``loss.jsonl``."""

    def __init__(self, output: Path, minutes: float, checkpoint_minutes: float = 3.0) -> None:
        self.file = output / "loss.jsonl"
        self.minutes, self.checkpoint_minutes = minutes, checkpoint_minutes
        self.began = self.saved = time.time()
        self.steps = 0
        self._window: list[dict[str, float]] = []

    @property
    def progress(self) -> float:
        return (time.time() - self.began) / 60 / self.minutes

    @property
    def running(self) -> bool:
        return self.progress < 1.0

    @property
    def due(self) -> bool:
        """True when it is time for a checkpoint; asking resets the clock."""
        if time.time() - self.saved < 60 * self.checkpoint_minutes:
            return False
        self.saved = time.time()
        return True

    def step(self, **values: float) -> None:
        self.steps += 1
        self._window.append(values)
        if len(self._window) == 20:
            means = {k: round(float(np.mean([w[k] for w in self._window])), 5) for k in values}
            row = {"step": self.steps, "minutes": round((time.time() - self.began) / 60, 2), **means}
            with self.file.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
            self._window.clear()


def decayed(peak: float, log: Log, warmup_steps: int = 100) -> float:
    """Linear warm-up, then a cosine over the run's minutes down to a fiftieth of the peak."""
    warm = min(1.0, (log.steps + 1) / warmup_steps)
    return peak * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, log.progress))))
