"""The runner of benchmarks, which measures in child processes.

A variant that runs out of memory is dropped, and the others go on. Every finding is in the ledger as soon as it is
known, so a stopped run resumes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.bench.child_process import iterate_in_child
from ppdiffusers_tome.tools.bench.variants import variant_applied
from ppdiffusers_tome.tools.bench.workloads import Case, load_workload
from ppdiffusers_tome.tools.console.output import warn
from ppdiffusers_tome.tools.measure.ledger import Job, Ledger, run_jobs
from ppdiffusers_tome.tools.measure.timing import measure_seconds, rotate

Finding = tuple[list[Any], Any]  # a key of the ledger and its result


class Runner:
    """Measures cases; one that cannot run is warned of, and the others go on.

    Args:
        ledger: the findings of earlier runs; it receives those of this one.
        variants: labels of all that are compared, as ``label_variants`` returns them.

    Attributes:
        failed: why a case could not run.
    """

    def __init__(self, ledger: Ledger, variants: Sequence[str]) -> None:
        self._ledger, self._variants = ledger, variants
        self.failed: dict[Case, str] = {}

    def run(self, repeats: Mapping[Case, int], *, memory: bool) -> None:
        """Measure the rounds and peaks that the ledger lacks.

        Args:
            repeats: the number of rounds of each case.
            memory: whether the peak memory of every variant is measured.

        Raises:
            UserError: the ledger is of another machine, or cannot be written.
        """
        jobs = []
        for case, rounds in repeats.items():
            keys = [case.key("round", number) for number in range(rounds)]
            jobs.append(Job(case.name, keys, partial(self._measure_rounds, case)))
            if memory:
                keys = [case.key("memory", variant) for variant in self._variants]
                jobs.append(Job(case.name, keys, partial(self._measure_peaks, case)))
        run_jobs(jobs, self._ledger, description="findings")

    def _measure_rounds(self, case: Case, keys: list[Any]) -> Iterator[Finding]:
        """Let all variants take turns, and again without one that does not fit."""
        while fitting := [each for each in self._variants if case.key("too large", each) not in self._ledger]:
            rounds = [number for _, _, number in keys if case.key("round", number) not in self._ledger]
            running = fitting
            try:
                for message in self._iterate_in_child(case, measure_rounds, fitting, rounds):
                    if "running" in message:
                        running = [message["running"]]
                    else:
                        yield case.key("round", message["round"]), message["seconds"]
                return
            except MemoryError:
                for variant in running:  # all, if none ran yet
                    yield case.key("too large", variant), True

    def _measure_peaks(self, case: Case, keys: list[Any]) -> Iterator[Finding]:
        for key in keys if case not in self.failed else ():
            try:
                for peaks in self._iterate_in_child(case, measure_peaks, key[-1]):
                    yield key, peaks
            except MemoryError:
                yield key, None

    def _iterate_in_child(self, case: Case, work: Callable[..., Iterator[Any]], *args: object) -> Iterator[Any]:
        """Iterate over the findings of a child process, whose first message is the machine."""
        messages = iterate_in_child(work, case, *args)
        self._ledger.check_machine(next(messages))
        try:
            yield from messages
        except (ToMeError, RuntimeError) as error:
            self.failed[case] = str(error).strip().splitlines()[-1]
            warn(f"{case.model}, {case.dtype}, {case.name} was not measured: {self.failed[case]}")


def measure_rounds(case: Case, variants: Sequence[str], rounds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Let the variants take turns, in a child process.

    Yields:
        The machine, then ``running``, a variant before it runs, and each ``round`` with its ``seconds`` by variant.
    """
    import paddle

    yield _describe_machine()
    workload = load_workload(case)

    def run(variant: str, steps: int) -> float:
        with variant_applied(workload.model_or_pipe, variant):
            gc.collect()
            return measure_seconds(lambda: workload.run(steps)) / workload.units

    # The first calls set things up: on a GPU each variant's kernels are chosen, on a CPU a call may take a minute.
    for variant in variants if paddle.get_device() != "cpu" else variants[:1]:
        yield {"running": variant}
        run(variant, 1)
    for number in rounds:
        seconds = {}
        for variant in rotate(variants, number):
            yield {"running": variant}
            seconds[variant] = run(variant, case.steps)
        yield {"round": number, "seconds": seconds}


def measure_peaks(case: Case, variant: str) -> Iterator[dict[str, Any]]:
    """Measure the memory of one step, the first work of a child process.

    Yields:
        The machine, and ``peak_bytes`` and ``resident_peak_bytes``, None where they could not be measured.
    """
    import paddle

    from ppdiffusers_tome.tools.measure.memory import Meter, ResidentMemory

    yield _describe_machine()
    workload = load_workload(case)
    with variant_applied(workload.model_or_pipe, variant):
        gc.collect()
        resident = ResidentMemory()
        resident.reset()
        meter = Meter()
        workload.run(1)
        on_cpu = paddle.get_device() == "cpu"
        yield {"peak_bytes": meter.peak_bytes(), "resident_peak_bytes": resident.peak_bytes() if on_cpu else None}


def _describe_machine() -> dict[str, Any]:
    import paddle

    from ppdiffusers_tome.tools.measure.memory import explain_peak
    from ppdiffusers_tome.tools.measure.system import describe_machine

    gpu = {"gpu": paddle.device.cuda.get_device_name()} if paddle.get_device() != "cpu" else {}
    return {**describe_machine(), **gpu, "memory": explain_peak()}
