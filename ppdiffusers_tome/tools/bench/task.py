"""What a process of its own measures: the seconds of variants that take turns in one setting, or the memory of one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.bench.contenders import put_on
from ppdiffusers_tome.tools.bench.plan import Plan, Setting, Variant
from ppdiffusers_tome.tools.measure.clock import seconds_of
from ppdiffusers_tome.tools.measure.rounds import in_turn

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.bench.workload import Workload


@dataclass(frozen=True)
class Task:
    """What one process measures.

    Attributes:
        plan, setting: what is loaded.
        variants: who is run.
        rounds: the numbers of the rounds in which all variants take turns; none to measure memory instead.
        warm_ups: how many of the variants run once before the rounds; None for all.
    """

    plan: Plan
    setting: Setting
    variants: tuple[Variant, ...]
    rounds: tuple[int, ...]
    warm_ups: int | None = None


# The seconds that a piece of work takes.
Clock = Callable[[Callable[[], Any]], float]
Load = Callable[[Plan, Setting], "Workload"]


def carry_out(task: Task, load: Load | None = None, clock: Clock = seconds_of) -> Iterator[dict[str, Any]]:
    """Carry out a task: ``{"on": ...}`` first, ``{"running": name}`` before every run, and each result as it comes.

    Args:
        task: what is measured.
        load: loads what a setting needs; None for ``load_workload``.
        clock: tells the seconds of a run.
    """
    from ppdiffusers_tome.tools.bench.workload import load_workload
    from ppdiffusers_tome.tools.measure.machine import measured_on
    from ppdiffusers_tome.tools.measure.measure import memory_meaning

    yield {"on": {**measured_on(), "memory": memory_meaning()}}
    workload = (load or load_workload)(task.plan, task.setting)
    yield from _seconds(task, workload, clock) if task.rounds else _memory(task, workload)


def _seconds(task: Task, workload: Workload, clock: Clock) -> Iterator[dict[str, Any]]:
    """A step of each variant, or of the first, to set things up, and then the rounds."""
    for variant in task.variants[: task.warm_ups]:
        yield {"running": variant.name}
        _run(task, workload, variant, 1, clock)
    for number in task.rounds:
        seconds: dict[str, float] = {}
        for variant in in_turn(task.variants, number):
            yield {"running": variant.name}
            seconds[variant.name] = _run(task, workload, variant, task.plan.steps, clock) / workload.units
        yield {"round": number, "seconds": {variant.name: seconds[variant.name] for variant in task.variants}}


def _run(task: Task, workload: Workload, variant: Variant, steps: int, clock: Clock) -> float:
    """The seconds of a variant."""
    put_on(workload.model_or_pipe, variant.contender, variant.ratio, task.plan.max_downsample)
    gc.collect()
    return clock(lambda: workload.run(steps))


def _memory(task: Task, workload: Workload) -> Iterator[dict[str, Any]]:
    """One step of one variant, which is the first thing this process runs: old peaks cannot be mistaken for its own."""
    import paddle

    from ppdiffusers_tome.tools.measure.measure import Meter, ResidentMemory

    (variant,) = task.variants
    yield {"running": variant.name}
    put_on(workload.model_or_pipe, variant.contender, variant.ratio, task.plan.max_downsample)
    gc.collect()
    resident = ResidentMemory()
    resident.reset()
    meter = Meter()
    workload.run(1)
    on_cpu = paddle.get_device() == "cpu"
    yield {"peak_bytes": meter.peak_bytes(), "resident_peak_bytes": resident.peak_bytes() if on_cpu else None}
