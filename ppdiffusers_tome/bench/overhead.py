"""What merging itself costs in one block: match, merge and unmerge, ours beside ppdiffusers' port."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.grid import Grid

STAGES = ("match", "merge", "unmerge")
SUMS = {"merge + unmerge": ("merge", "unmerge"), "all": STAGES}
OURS, PORT, TORCH = "ppdiffusers_tome", "port", "tomesd (PyTorch)"


@dataclass(frozen=True)
class Problem:
    """One block's tokens, ``[batch, height * width, channels]`` float32, and how many merge (2x2 stride)."""

    batch: int = 2
    height: int = 64
    width: int = 64
    channels: int = 320
    ratio: float = 0.5

    @property
    def grid(self) -> Grid:
        return Grid(self.height, self.width)


@dataclass(frozen=True)
class Spread:
    """Milliseconds of several runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        values = [1000 * value for value in seconds]
        return cls(statistics.median(values), min(values), max(values))


def measure(problem: Problem, repeats: int, torch_python: Path | None = None) -> dict[str, dict[str, Spread]]:
    """Time every contender, alternating in one process; tomesd in a second one.

    Args:
        problem: the tokens.
        repeats: timed runs of each stage, after one that is not timed.
        torch_python: the interpreter of an environment with torch and tomesd; None leaves that column out.

    Returns:
        Milliseconds by contender and stage; the sums are of the runs, not of the medians.

    Raises:
        UserError: ``torch_python`` cannot run tomesd.
    """
    contenders = {name: _stages(name, problem) for name in (OURS, PORT)}
    seconds: dict[str, dict[str, list[float]]] = {name: {stage: [] for stage in STAGES} for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            taken = _timed_run(run)
            for stage in STAGES if repeat else ():
                seconds[name][stage].append(taken[stage])
    if torch_python is not None:
        seconds[TORCH] = _tomesd(problem, repeats, torch_python)
    return {name: _with_sums(stages) for name, stages in seconds.items()}


def peak_bytes(problem: Problem) -> dict[str, int | None]:
    """The most memory that match, merge and unmerge hold beyond their input, each contender in a process of its own.

    A process runs once on a small problem, hands what it freed back to the system, resets the kernel's count of its
    resident memory, and runs once. None where that count cannot be reset.
    """
    peaks: dict[str, int | None] = {}
    for name in (OURS, PORT):
        command = [sys.executable, "-m", __name__, name, json.dumps(asdict(problem))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[name] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def _stages(name: str, problem: Problem) -> Callable[[Callable[[str], None]], None]:
    """One run of a contender on fixed tokens; it calls ``done(stage)`` after every stage."""
    import numpy as np
    import paddle

    grid, num_merged = problem.grid, problem.grid.num_merged(problem.ratio)
    noise = np.random.default_rng(0).standard_normal((problem.batch, grid.num_tokens, problem.channels), np.float32)
    x, timestep = paddle.to_tensor(noise), paddle.to_tensor([500])
    if name == PORT:
        from ppdiffusers.patches.tomesd_patch_utils import bipartite_soft_matching_random2d

        def match_tokens() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
            return bipartite_soft_matching_random2d(x, problem.width, problem.height, 2, 2, num_merged)
    else:
        from ppdiffusers_tome.methods.tome import match
        from ppdiffusers_tome.partition import random_partition

        def match_tokens() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
            matching = match(x, random_partition(grid, 2, 2, seed=0, timestep=timestep), num_merged)
            return matching.merge, matching.unmerge

    def run(done: Callable[[str], None]) -> None:
        merge, unmerge = match_tokens()
        done("match")
        merged = merge(x)
        done("merge")
        unmerge(merged)
        done("unmerge")

    return run


def _timed_run(run: Callable[[Callable[[str], None]], None]) -> dict[str, float]:
    import paddle

    on_gpu = paddle.get_device().startswith("gpu")
    ends: dict[str, float] = {}

    def done(stage: str) -> None:
        if on_gpu:
            paddle.device.cuda.synchronize()
        ends[stage] = time.perf_counter()

    gc.disable()
    try:
        with paddle.no_grad():
            start = time.perf_counter()
            run(done)
    finally:
        gc.enable()
    starts = [start, ends["match"], ends["merge"]]
    return {stage: ends[stage] - began for stage, began in zip(STAGES, starts, strict=True)}


def _tomesd(problem: Problem, repeats: int, torch_python: Path) -> dict[str, list[float]]:
    script = Path(__file__).with_name("tomesd_overhead.py")
    given = json.dumps({**asdict(problem), "repeats": repeats})
    try:
        done = subprocess.run([str(torch_python), str(script), given], capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise UserError(
            f"--torch-python {torch_python} could not run tomesd ({' '.join(reason)}); name the python of an "
            "environment with torch and tomesd, such as venv/bin/python"
        ) from error


def _with_sums(seconds: dict[str, list[float]]) -> dict[str, Spread]:
    spreads = {stage: Spread.of(values) for stage, values in seconds.items()}
    for name, parts in SUMS.items():
        spreads[name] = Spread.of([sum(run) for run in zip(*(seconds[part] for part in parts), strict=True)])
    return spreads


def _print_peak(name: str, problem: Problem) -> None:
    """Run in a process of its own by ``peak_bytes``."""
    import re

    from ppdiffusers_tome.measure import resident_meter

    _timed_run(_stages(name, Problem(problem.batch, 8, 8, problem.channels, problem.ratio)))
    run = _stages(name, problem)
    gc.collect()
    meter = resident_meter()
    meter.reset()
    status = Path("/proc/self/status").read_text()
    before = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    _timed_run(run)
    peak = meter.peak_bytes()
    print(json.dumps(None if peak is None else peak - before))


def measured_on() -> dict[str, Any]:
    """What a reader must know to repeat the run."""
    import os
    import platform

    import paddle
    import ppdiffusers

    return {
        "device": paddle.get_device(),
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "paddle": paddle.__version__,
        "ppdiffusers": ppdiffusers.__version__,
    }


if __name__ == "__main__":
    _print_peak(sys.argv[1], Problem(**json.loads(sys.argv[2])))
