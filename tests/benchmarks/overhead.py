"""Measure the cost of match, merge and unmerge in a block, beside ppdiffusers' port.

    PYTHONPATH=tests python -m benchmarks.overhead
    PYTHONPATH=tests python -m benchmarks.overhead --torch-python ~/torch-env/bin/python

The variants take turns in one process; medians with lowest and highest, and the memory that tensors take beyond the
input. The script writes overhead.md and overhead.json.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from benchmarks import pages
from benchmarks.block import FAST, MERGE, NAMES, OURS, PORT, STAGES, UNMERGE, BlockCase, stages_of
from benchmarks.timing import Spread, measure_seconds, pause_garbage_collection
from benchmarks.turns import take_turns
from ppdiffusers_tome.cpu import keeps_freed_memory
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.measure.meter import Meter
from ppdiffusers_tome.tools.measure.units import format_bytes
from ppdiffusers_tome.tuning.measurement import read_clock

if TYPE_CHECKING:
    import paddle

SUMS = {"merge + unmerge": (MERGE, UNMERGE), "all": STAGES}
A_STEP = "a step of all blocks"
TOMESD = "tomesd (PyTorch)"
# What ``keep_freed_memory`` does, for a process without this package.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}
Spreads = dict[str, dict[str, Spread]]


@dataclass(frozen=True)
class Peak:
    """Memory of Paddle's tensors and numpy's arrays beyond the input, in bytes.

    Attributes:
        held: the most at any time, including the results (the merged and the unmerged tokens).
        working: the most beyond the results that exist when a stage ends.
    """

    held: int
    working: int


def main(argv: Sequence[str] | None = None) -> None:
    parser = pages.parser(__doc__)
    defaults = asdict(BlockCase())
    for option, field in (("batch", "batch"), ("grid-height", "height"), ("grid-width", "width"),
                          ("channels", "channels"), ("blocks", "blocks"), ("tile", "tile"),
                          ("reuse-steps", "reuse_steps")):  # fmt: skip
        parser.add_argument(f"--{option}", dest=field, type=int, default=defaults[field], metavar="N")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="timed runs (default: 15)")
    parser.add_argument("--torch-python", type=Path, metavar="FILE", help="python with torch and tomesd, for a column")
    args = pages.parse(parser, argv, "overhead")
    case = BlockCase(**{name: getattr(args, name) for name in defaults})
    ToMeConfig(ratio=case.ratio, tile=case.tile, reuse_steps=case.reuse_steps)
    if case.num_merged == 0:
        parser.error(f"--ratio {case.ratio} of a {case.height}x{case.width} grid merges nothing; enlarge one of them")

    spreads = measure(case, args.repeats)
    if args.torch_python is not None:
        spreads[TOMESD] = _add_sums(_run_tomesd(args.torch_python, case, args.repeats))
    peaks = measure_peaks(case)
    about = {**asdict(case), "repeats": args.repeats, **pages.machine()}
    notes = [
        pages.describe(about),
        "milliseconds: median (lowest to highest)",
        f"{FAST}: tile={case.tile}, and for a step reuse_steps={case.reuse_steps}",
    ]
    results = {
        "run": about,
        "milliseconds": {name: {s: asdict(spread) for s, spread in by.items()} for name, by in spreads.items()},
        "peak_bytes": {name: peak and asdict(peak) for name, peak in peaks.items()},
    }
    pages.write(args, "overhead", pages.page("Overhead of token merging", notes, _table(spreads, peaks)), results)


def measure(case: BlockCase, repeats: int, variants: Sequence[str] = NAMES) -> Spreads:
    """Time the variants in turns.

    Args:
        case: the tokens.
        repeats: timed runs of each stage, each after one that is not timed.
        variants: of ``NAMES``.

    Returns:
        Milliseconds by variant and stage; the sums are of the runs, not of the medians.
    """
    turns = {name: _turn(name, case) for name in variants}
    return {
        name: _add_sums({stage: [run[stage] for run in runs] for stage in (*STAGES, A_STEP)})
        for name, runs in take_turns(turns, repeats, warm_up=False).items()
    }


def _turn(name: str, case: BlockCase) -> Callable[[], dict[str, float]]:
    """Return a function that times a variant's stages, and a step."""
    import paddle

    x, timestep, stages = case.tokens(), paddle.to_tensor([500]), stages_of(name, case)

    def run(times: int = 1) -> None:
        for _ in range(times):
            for _ in stages(case, x, timestep):
                pass

    step = (lambda: measure_seconds(lambda: run(case.blocks))) if name == PORT else _our_step(name, case, x)

    def turn() -> dict[str, float]:
        with paddle.no_grad(), pause_garbage_collection():
            run()  # or the variant before would decide which memory has to be fetched from the system again
            start, seconds = read_clock(), dict[str, float]()
            for stage in stages(case, x, timestep):
                if stage in STAGES:
                    end = read_clock()
                    seconds[stage], start = end - start, end
            return {**seconds, A_STEP: step()}

    return turn


def _our_step(name: str, case: BlockCase, x: paddle.Tensor) -> Callable[[], float]:
    """Time a denoising step on the path that a model's hooks take."""
    import paddle

    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
    from ppdiffusers_tome.patching.state.pipeline_call import Denoising

    config = ToMeConfig(ratio=case.ratio)
    if name == FAST:
        config = replace(config, tile=case.tile, reuse_steps=case.reuse_steps)
    state = DenoiserState(config)
    # Of one sampler, over and over; every n-th step makes its matchings.
    timesteps = list(range(5 * config.reuse_steps, 0, -1))
    scheduler = SimpleNamespace(timesteps=timesteps, set_timesteps=None)
    denoising = Denoising(SimpleNamespace(scheduler=scheduler), "", state)
    tensors = itertools.cycle([paddle.to_tensor([value]) for value in timesteps])

    def run_steps(number: int) -> None:
        for _ in range(number):
            _run_blocks(state, case, x, next(tensors), denoising)

    return lambda: measure_seconds(lambda: run_steps(config.reuse_steps)) / config.reuse_steps


def _run_blocks(
    state: Any, case: BlockCase, x: paddle.Tensor, timestep: paddle.Tensor, denoising: Any
) -> None:
    """Run one call of a denoiser whose blocks do nothing but merge and unmerge."""
    import paddle

    from ppdiffusers_tome.merging.grid import Layout
    from ppdiffusers_tome.patching.state.block_call import BlockCall
    from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
    from ppdiffusers_tome.patching.state.shared_values import CallIdentity

    call, layout = DenoiserCall(state, paddle.nn.Layer(), denoising, CallIdentity()), Layout(case.grid)
    call.set_timestep(timestep)
    for number in range(case.blocks):
        key: Any = number  # in place of the block's layer, the same at every step
        reduction: Any = BlockCall(call, key, str(number), layout, x).reduction
        reduction.restore(reduction.reduce(x))


def _add_sums(seconds: dict[str, list[float]]) -> dict[str, Spread]:
    """Turn the seconds of runs into milliseconds, with the stages' sums."""
    runs = {stage: [1000 * value for value in values] for stage, values in seconds.items()}
    for name, stages in SUMS.items():
        runs[name] = [sum(run) for run in zip(*(runs[stage] for stage in stages), strict=True)]
    return {stage: Spread.from_values(values) for stage, values in runs.items()}


def _run_tomesd(torch_python: Path, case: BlockCase, repeats: int) -> dict[str, list[float]]:
    """Return tomesd's seconds by stage under PyTorch."""
    script = Path(__file__).with_name("tomesd_overhead.py")
    settings = json.dumps({**asdict(case), "repeats": repeats, "step": A_STEP})
    environment = {**os.environ, **(_KEEP_FREED_MEMORY if keeps_freed_memory() else {})}
    try:
        command = [str(torch_python), str(script), settings]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"--torch-python {torch_python} could not run tomesd ({error}); give a python with torch and tomesd")


def measure_peaks(case: BlockCase) -> dict[str, Peak | None]:
    """Measure each variant's peak in a child process; None where memory ran out."""
    found: dict[str, Peak | None] = {}
    for name in NAMES:
        try:
            found[name] = pages.run_in_child(_peak, name, case)
        except MemoryError:
            found[name] = None
    return found


def _peak(name: str, case: BlockCase) -> Peak:
    """Measure in the child, after a small case that sets things up."""
    import paddle

    from benchmarks.traced_memory import read_tensor_bytes

    def bytes_in_use() -> list[int]:
        """Return the bytes now and at the most, an upper bound of the peak."""
        tensors = read_tensor_bytes("current"), read_tensor_bytes("peak")
        return [sum(both) for both in zip(tensors, tracemalloc.get_traced_memory(), strict=True)]

    timestep, small = paddle.to_tensor([500]), replace(case, height=8, width=8, tile=4)
    x, held, working = case.tokens(), 0, 0
    with paddle.no_grad():
        for _ in stages_of(name, small)(small, small.tokens(), timestep):
            pass
        Meter()  # collects garbage and resets the peak
        tracemalloc.start()
        before, _ = bytes_in_use()
        for stage in stages_of(name, case)(case, x, timestep):
            if stage in STAGES:
                results, peak = (value - before for value in bytes_in_use())
                held, working = max(held, peak), max(working, peak - results)
    return Peak(held, working)


def _table(spreads: Spreads, peaks: Mapping[str, Peak | None]) -> str:
    """Format the milliseconds and memory of each variant, and their ratios."""
    pairs = [(other, name) for other in spreads if other not in (OURS, FAST) for name in (OURS, FAST)]
    rows = []
    for stage in spreads[OURS]:
        cells = [by[stage].format("{:.1f}".format) for by in spreads.values()]
        times = [f"{spreads[other][stage].median / spreads[name][stage].median:.1f}x" for other, name in pairs]
        rows.append([stage, *cells, *times])
    for field, meaning in (("held", "memory at the peak, results included"), ("working", "memory beyond the results")):
        memory: dict[str, Any] = {name: getattr(peak, field) for name, peak in peaks.items() if peak is not None}
        times = [f"{memory[o] / memory[n]:.1f}x" if o in memory and memory.get(n) else "-" for o, n in pairs]
        rows.append([meaning, *(format_bytes(memory.get(name)) for name in spreads), *times])
    return pages.table(["", *spreads, *(f"{other} / {name}" for other, name in pairs)], rows)


if __name__ == "__main__":
    pages.prepare()
    main()
