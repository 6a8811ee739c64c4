"""What merging itself costs: match, merge and unmerge of one block and a step of several, ours beside the port."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.measuring.clock import synchronize
from ppdiffusers_tome.tools.measuring.measure import usable_cores
from ppdiffusers_tome.tools.measuring.out_of_memory import die_first, ran_out_of_memory, was_killed
from ppdiffusers_tome.tools.measuring.spread import Spread

STAGES = ("match", "merge", "unmerge")
SUMS = {"merge + unmerge": ("merge", "unmerge"), "all": STAGES}
A_STEP = "a step of all blocks"
CONTENDERS = OURS, FAST, PORT = "ours", "ours, tile and reuse", "port"
TORCH = "tomesd (PyTorch)"


@dataclass(frozen=True)
class Problem:
    """One block's tokens, ``[batch, height * width, channels]`` float32, and how many merge (2x2 stride).

    Attributes:
        batch, height, width, channels, ratio: of the tokens.
        blocks: how many blocks a denoising step has on this grid; 5 in Stable Diffusion 1.5's finest level.
        tile, reuse_steps: settings of the contender ``FAST``, whose blocks share their matching.
    """

    batch: int = 2
    height: int = 64
    width: int = 64
    channels: int = 320
    ratio: float = 0.5
    blocks: int = 5
    tile: int = 16
    reuse_steps: int = 4

    @property
    def grid(self) -> Grid:
        return Grid(self.height, self.width)


@dataclass(frozen=True)
class Peak:
    """Memory of Paddle's tensors beyond the input, in bytes.

    Attributes:
        held: the most at any time, results included: the merged and the unmerged tokens.
        working: the most beyond the results that there are when a stage ends.
    """

    held: int
    working: int


def measure(
    problem: Problem, repeats: int, torch_python: Path | None = None, contenders: Sequence[str] = CONTENDERS
) -> dict[str, dict[str, Spread]]:
    """Time every contender, alternating in one process; tomesd in a second one.

    Args:
        problem: the tokens.
        repeats: timed runs of each stage, each after one that is not timed.
        torch_python: the interpreter of an environment with torch and tomesd; None leaves that column out.
        contenders: of ``CONTENDERS``.

    Returns:
        Milliseconds by contender and stage; the sums are of the runs, not of the medians.

    Raises:
        UserError: ``torch_python`` cannot run tomesd.
    """
    runs = {name: (_stages(name, problem), _step(name, problem)) for name in contenders}
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    for _ in range(repeats):
        for name, (stages, step) in runs.items():
            _timed_run(stages)  # or the one before would decide which memory has to be fetched from the system anew
            taken = _timed_run(stages) | {A_STEP: _timed_step(step)}
            for stage, value in taken.items():
                seconds[name].setdefault(stage, []).append(value)
    if torch_python is not None:
        seconds[TORCH] = _tomesd(problem, repeats, torch_python)
    return {name: _with_sums(stages) for name, stages in seconds.items()}


def peaks(problem: Problem) -> dict[str, Peak | None]:
    """The memory of match, merge and unmerge, each contender in a process of its own (Paddle 2.6 resets no peak).

    None for one that ran out of memory.
    """
    return {name: _peak(name, problem) for name in CONTENDERS}


def _peak(name: str, problem: Problem) -> Peak | None:
    command = [sys.executable, "-m", __name__, name, json.dumps(asdict(problem))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if was_killed(done.returncode) or ran_out_of_memory(done.stderr):
        return None
    done.check_returncode()
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def _tokens(problem: Problem) -> Any:
    import numpy as np
    import paddle

    shape = (problem.batch, problem.grid.num_tokens, problem.channels)
    return paddle.to_tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


def _config(name: str, problem: Problem) -> ToMeConfig:
    if name != FAST:
        return ToMeConfig(ratio=problem.ratio)
    return ToMeConfig(ratio=problem.ratio, tile=problem.tile, reuse_steps=problem.reuse_steps, reuse_blocks=True)


def _stages(name: str, problem: Problem) -> Callable[[Callable[[str], None]], None]:
    """One run of a contender on fixed tokens; it calls ``done(stage)`` after every stage."""
    import paddle

    x, timestep = _tokens(problem), paddle.to_tensor([500])
    if name == PORT:
        match_tokens = _port_matching(x, problem)
    else:
        from ppdiffusers_tome.merging.matchers import matcher
        from ppdiffusers_tome.merging.partition import random_partition

        def match_tokens() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
            partition = random_partition(problem.grid, 2, 2, seed=0, timestep=timestep)
            num_merged = problem.grid.num_merged(problem.ratio)
            tile = problem.tile if name == FAST else None
            matching: Any = matcher(partition, problem.grid, num_merged, tile=tile)(x)
            return matching.merge, matching.unmerge

    def run(done: Callable[[str], None]) -> None:
        merge, unmerge = match_tokens()
        done("match")
        merged = merge(x)
        done("merge")
        unmerged = unmerge(merged)
        done("unmerge")
        del unmerged

    return run


def _port_matching(x: Any, problem: Problem) -> Callable[[], tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    from ppdiffusers.patches.tomesd_patch_utils import bipartite_soft_matching_random2d

    num_merged = problem.grid.num_merged(problem.ratio)
    return lambda: bipartite_soft_matching_random2d(x, problem.width, problem.height, 2, 2, num_merged)


def _step(name: str, problem: Problem) -> Callable[[], float]:
    """The seconds of one denoising step, by the path that a model's hooks take; the mean over the steps of a reuse."""
    import paddle

    x = _tokens(problem)
    if name == PORT:
        match_tokens = _port_matching(x, problem)

        def port() -> float:
            start = time.perf_counter()
            for _ in range(problem.blocks):
                merge, unmerge = match_tokens()
                unmerge(merge(x))
            synchronize()
            return time.perf_counter() - start

        return port
    from ppdiffusers_tome.attaching.calls.attachment import Attachment

    attachment, steps = Attachment(_config(name, problem)), problem.reuse_steps if name == FAST else 1
    # One run of a sampler without an end; its first two steps make their matchings, then every n-th.
    timesteps = (paddle.to_tensor([value]) for value in itertools.count(2**22, -1))
    if name == FAST:
        for _ in range(1 + steps):
            _blocks(attachment, problem, x, next(timesteps))

    def ours() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            _blocks(attachment, problem, x, next(timesteps))
        synchronize()
        return (time.perf_counter() - start) / steps

    return ours


def _blocks(attachment: Any, problem: Problem, x: Any, timestep: Any) -> None:
    """One call of a denoiser whose blocks do nothing but merge and unmerge."""
    from ppdiffusers_tome.attaching.calls.call import BlockCall, Call
    from ppdiffusers_tome.merging.section import Given, on_merged_tokens

    call, layout = Call(attachment), Layout(problem.grid)
    call.tell_timestep(timestep)
    for number in range(problem.blocks):
        matching: Any = BlockCall(call, None, number, layout, x).match()
        section = on_merged_tokens(matching, "mean")
        next(section)
        section.send(Given(section.send(Given(x)), leaves=True))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without gradients, and without Python's garbage collector stepping in."""
    import paddle

    gc.disable()
    try:
        with paddle.no_grad():
            yield
    finally:
        gc.enable()


def _timed_step(step: Callable[[], float]) -> float:
    with _undisturbed():
        return step()


def _timed_run(run: Callable[[Callable[[str], None]], None]) -> dict[str, float]:
    ends: dict[str, float] = {}

    def done(stage: str) -> None:
        synchronize()
        ends[stage] = time.perf_counter()

    with _undisturbed():
        start = time.perf_counter()
        run(done)
    starts = [start, ends["match"], ends["merge"]]
    return {stage: ends[stage] - began for stage, began in zip(STAGES, starts, strict=True)}


def _tomesd(problem: Problem, repeats: int, torch_python: Path) -> dict[str, list[float]]:
    script = Path(__file__).with_name("tomesd_overhead.py")
    given = json.dumps({**asdict(problem), "repeats": repeats, "step": A_STEP})
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
    """Milliseconds, with those of the stages' sums."""
    runs = {stage: [1000 * value for value in values] for stage, values in seconds.items()}
    for name, parts in SUMS.items():
        runs[name] = [sum(run) for run in zip(*(runs[part] for part in parts), strict=True)]
    return {stage: Spread.of(values) for stage, values in runs.items()}


def _print_peak(name: str, problem: Problem) -> None:
    """Run in a process of its own by ``peaks``: a small problem first, for whatever a first call sets up."""
    import paddle

    from ppdiffusers_tome.tools.measuring.measure import tensor_bytes

    die_first()
    _timed_run(_stages(name, replace(problem, height=8, width=8, tile=4)))
    run = _stages(name, problem)
    gc.collect()
    before, _ = tensor_bytes()
    held, working = 0, 0

    def done(stage: str) -> None:
        nonlocal held, working
        results, peak = (value - before for value in tensor_bytes())
        held, working = max(held, peak), max(working, peak - results)

    with paddle.no_grad():
        run(done)
    print(json.dumps({"held": held, "working": working}))


def measured_on() -> dict[str, Any]:
    """What a reader must know to repeat the run."""
    import os
    import platform

    import paddle
    import ppdiffusers

    return {
        "device": paddle.get_device(),
        "processor": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "paddle": paddle.__version__,
        "ppdiffusers": ppdiffusers.__version__,
    }


if __name__ == "__main__":
    _print_peak(sys.argv[1], Problem(**json.loads(sys.argv[2])))
