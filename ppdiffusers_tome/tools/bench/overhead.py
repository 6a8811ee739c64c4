"""What merging itself costs: match, merge and unmerge of one block and a step of several, ours beside the port."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.block import FAST, MERGE, NAMES, PORT, STAGES, UNMERGE, BlockCase, stages_of
from ppdiffusers_tome.tools.bench.torch_python import run_with_torch
from ppdiffusers_tome.tools.measure.clock import DeviceClock, garbage_kept, seconds_of
from ppdiffusers_tome.tools.measure.rounds import take_turns
from ppdiffusers_tome.tools.measure.spread import Spread

if TYPE_CHECKING:
    import paddle

    from ppdiffusers_tome.patching.state.attachment import Attachment

SUMS = {"merge + unmerge": (MERGE, UNMERGE), "all": STAGES}
A_STEP = "a step of all blocks"
TORCH = "tomesd (PyTorch)"
Spreads = dict[str, dict[str, Spread]]


def measure(
    case: BlockCase, repeats: int, torch_python: Path | None = None, contenders: Sequence[str] = NAMES
) -> Spreads:
    """Time every contender, alternating in one process; tomesd in a second one.

    Args:
        case: the tokens.
        repeats: timed runs of each stage, each after one that is not timed.
        torch_python: the interpreter of an environment with torch and tomesd; None leaves that column out.
        contenders: of ``NAMES``.

    Returns:
        Milliseconds by contender and stage; the sums are of the runs, not of the medians.

    Raises:
        UserError: ``torch_python`` cannot run tomesd.
    """
    turns = {name: _turn(name, case) for name in contenders}
    seconds = {
        name: {stage: [run[stage] for run in runs] for stage in (*STAGES, A_STEP)}
        for name, runs in take_turns(turns, repeats, warm_up=False).items()
    }
    if torch_python is not None:
        given = {**asdict(case), "repeats": repeats, "step": A_STEP}
        seconds[TORCH] = run_with_torch(torch_python, "tomesd_overhead.py", given)
    return {name: _with_sums(stages) for name, stages in seconds.items()}


def _turn(name: str, case: BlockCase) -> Callable[[], dict[str, float]]:
    """Seconds of a contender's stages, and of a step."""
    import paddle

    x, timestep, stages = case.tokens(), paddle.to_tensor([500]), stages_of(name, case)

    def run(times: int = 1) -> None:
        for _ in range(times):
            for _ in stages(case, x, timestep):
                pass

    def port_step() -> float:
        return seconds_of(lambda: run(case.blocks))

    step = port_step if name == PORT else _our_step(name, case, x)

    def turn() -> dict[str, float]:
        with paddle.no_grad(), garbage_kept():
            run()  # or the one before would decide which memory has to be fetched from the system anew
            clock = DeviceClock()
            seconds = {stage: clock.lap() for stage in stages(case, x, timestep) if stage in STAGES}
            return {**seconds, A_STEP: step()}

    return turn


def _our_step(name: str, case: BlockCase, x: paddle.Tensor) -> Callable[[], float]:
    """The seconds of one denoising step, by the path that a model's hooks take; the mean over the steps of a reuse."""
    import paddle

    from ppdiffusers_tome.patching.state.attachment import Attachment

    config = ToMeConfig(ratio=case.ratio)
    if name == FAST:
        config = replace(config, tile=case.tile, reuse_steps=case.reuse_steps, reuse_blocks=True)
    attachment = Attachment(config)
    # One run of a sampler without an end; its first two steps make their matchings, then every n-th.
    timesteps = (paddle.to_tensor([value]) for value in itertools.count(2**22, -1))

    def steps(number: int) -> None:
        for _ in range(number):
            _blocks(attachment, case, x, next(timesteps))

    if name == FAST:
        steps(1 + config.reuse_steps)
    return lambda: seconds_of(lambda: steps(config.reuse_steps)) / config.reuse_steps


def _blocks(attachment: Attachment, case: BlockCase, x: paddle.Tensor, timestep: paddle.Tensor) -> None:
    """One call of a denoiser whose blocks do nothing but merge and unmerge."""
    from ppdiffusers_tome.merging.grid import Layout
    from ppdiffusers_tome.patching.state.calls import BlockCall, DenoiserCall

    call, layout = DenoiserCall(attachment), Layout(case.grid)
    call.set_timestep(timestep)
    for number in range(case.blocks):
        reduction: Any = BlockCall(call, number, layout, x).match()
        reduction.restore(reduction.reduce(x))


def _with_sums(seconds: dict[str, list[float]]) -> dict[str, Spread]:
    """Milliseconds, with those of the stages' sums."""
    runs = {stage: [1000 * value for value in values] for stage, values in seconds.items()}
    for name, stages in SUMS.items():
        runs[name] = [sum(run) for run in zip(*(runs[stage] for stage in stages), strict=True)]
    return {stage: Spread.of(values) for stage, values in runs.items()}
