"""Going through a plan: a process a setting, another one a peak, and a variant less whenever one does not fit."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.bench.ledger import MEMORY, TIME, BenchLedger
from ppdiffusers_tome.tools.bench.own_process import in_own_process
from ppdiffusers_tome.tools.bench.plan import Plan, Setting, Variant
from ppdiffusers_tome.tools.bench.result_files import ResultFiles
from ppdiffusers_tome.tools.bench.task import Task, carry_out
from ppdiffusers_tome.tools.cli.console.output import shorten_warnings
from ppdiffusers_tome.tools.cli.console.tables import Page

if TYPE_CHECKING:
    from tqdm import tqdm


class Sweep:
    """What is left to measure of a plan.

    Args:
        plan: all that is to be measured.
        ledger: what was measured so far; results are added to it as they come.
        work: carries out a task in a process of its own.
        warm_ups: as in ``Task``.
    """

    def __init__(
        self, plan: Plan, ledger: BenchLedger, work: Callable[[Task], Iterator[Any]] = carry_out,
        warm_ups: int | None = None,
    ) -> None:  # fmt: skip
        self._plan, self._ledger, self._work, self._warm_ups = plan, ledger, work, warm_ups

    def _num_runs(self) -> int:
        """How many runs are left, warm-ups included."""
        total = 0
        for setting in self._plan.settings:
            rounds, variants = self._rounds(setting), self._fitting(setting)
            total += len(rounds) * len(variants) + len(variants[: self._warm_ups]) if rounds else 0
            total += len(self._unweighed(setting))
        return total

    def run(self) -> None:
        """Measure what is left.

        Raises:
            ToMeError: the model cannot be loaded or run so, or the ledger was begun on another machine.
            RuntimeError: a process failed for another reason than memory.
        """
        from tqdm import tqdm

        with tqdm(desc=self._plan.what, total=self._num_runs(), disable=None) as bar:
            self._run(bar)

    def _run(self, bar: tqdm) -> None:
        for setting in self._plan.settings:
            # Once for all variants, and again without it whenever one of them does not fit.
            while (rounds := self._rounds(setting)) and (variants := self._fitting(setting)):
                self._measure(Task(self._plan, setting, tuple(variants), tuple(rounds), self._warm_ups), TIME, bar)
            for variant in self._unweighed(setting):
                self._measure(Task(self._plan, setting, (variant,), ()), MEMORY, bar)

    def _rounds(self, setting: Setting) -> list[int]:
        """The rounds that are left."""
        done = self._ledger.rounds(setting)
        return [number for number in range(self._plan.repeats) if number not in done]

    def _fitting(self, setting: Setting) -> list[Variant]:
        """The variants that did not run out of memory, as far as is known."""
        return [each for each in self._plan.variants if not self._ledger.out_of_memory(setting, each, TIME)]

    def _unweighed(self, setting: Setting) -> list[Variant]:
        """The variants whose memory is left to measure."""
        ledger = self._ledger
        return [
            variant for variant in self._plan.variants
            if self._plan.memory and ledger.peaks(setting, variant) is None
            and not ledger.out_of_memory(setting, variant, MEMORY)
        ]  # fmt: skip

    def _measure(self, task: Task, during: str, bar: tqdm) -> None:
        """Write down the results of a process; if memory ends it, who was running (all, if nobody was yet)."""
        running = task.variants
        try:
            for result in in_own_process(self._work, task):
                if "on" in result:
                    self._ledger.note_machine(result["on"])
                elif "running" in result:
                    running = tuple(variant for variant in task.variants if variant.name == result["running"])
                    bar.set_postfix_str(f"{task.setting.name}: {result['running']}", refresh=False)
                    bar.update()
                elif "round" in result:
                    self._ledger.add_round(task.setting, result["round"], result["seconds"])
                else:
                    self._ledger.add_peak(task.setting, task.variants[0], result)
        except MemoryError:
            for variant in running:
                self._ledger.add_out_of_memory(task.setting, variant, during)


def run_plan(plan: Plan, args: argparse.Namespace, title: str) -> None:
    """Measure what is left of a plan and write the tables and the plot; what was measured stays when this is stopped.

    Raises:
        UserError: a file is in the way or cannot be written, or the model or the device does not do.
    """
    path = args.output / f"{plan.what}.jsonl"
    # The other files are made of this one, so where it is ours so are they.
    overwrite = args.overwrite or path.is_file()
    ResultFiles(args.output, plan.what, picture=True, overwrite=overwrite)
    with shorten_warnings(), BenchLedger(path, plan, overwrite=args.overwrite) as ledger:
        Sweep(plan, ledger).run()
        files = ResultFiles(args.output, plan.what, picture=True, overwrite=True)
        _write(plan, ledger, files, title, args.memory_limit)


def _write(plan: Plan, ledger: BenchLedger, files: ResultFiles, title: str, limit_bytes: int | None) -> None:
    from ppdiffusers_tome.tools.bench.plots import plot_sweep
    from ppdiffusers_tome.tools.bench.summary import as_json, everything, notes, results_of, speeds

    results = results_of(plan, ledger)
    tables = [speeds(plan, results)] if plan.repeats else []
    page = Page(title, notes(plan, ledger.on, limit_bytes), [*tables, everything(plan, results, limit_bytes)])
    picture = plot_sweep(title, plan, results)
    made_with = {"plan": plan.to_dict(), "on": ledger.on}
    files.write(page, as_json(plan, ledger.on, results, limit_bytes), picture, made_with)
