"""Going through what ``bench gpu`` measures, and the table of it beside the estimate. Knows no Paddle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.bench.contenders import PRESETS
from ppdiffusers_tome.tools.bench.gpu.estimate import by_strength, estimated
from ppdiffusers_tome.tools.bench.gpu.families import FAMILIES
from ppdiffusers_tome.tools.bench.gpu.subjects import MODELS, CannotRunError
from ppdiffusers_tome.tools.bench.ledger import BenchLedger
from ppdiffusers_tome.tools.bench.plan import Plan, Setting
from ppdiffusers_tome.tools.bench.summary import OUT_OF_MEMORY, Result, results_of
from ppdiffusers_tome.tools.bench.sweep import Sweep
from ppdiffusers_tome.tools.bench.task import Task
from ppdiffusers_tome.tools.cli.console.output import warn
from ppdiffusers_tome.tools.cli.console.tables import Table

FUSED = ("xformers", "flash")  # attention that the estimate is about: one kernel, which writes no scores


@dataclass(frozen=True)
class Finding:
    """What one plan of a family came to.

    Attributes:
        family: of ``FAMILIES``.
        plan: one model in one precision and kind of attention, at every size.
        on: what it was measured on.
        results: of the unmerged model and every preset, size by size.
        failed: why nothing, or not everything, was measured; None where all was.
    """

    family: str
    plan: Plan
    on: dict[str, Any]
    results: list[Result]
    failed: str | None = None

    @property
    def name(self) -> str:
        return name_of(self.family, self.plan)


def name_of(family: str, plan: Plan) -> str:
    """``sd15-float16-flash``: of the file of its rounds."""
    return f"{family}-{plan.dtype}-{plan.attentions[0]}"


def measure(
    plans: Sequence[tuple[str, Plan]], folder: Path, work: Callable[[Task], Iterator[Any]], *, overwrite: bool
) -> list[Finding]:
    """Measure what is left of each plan; one that cannot be run does not keep the others from it.

    Args:
        plans: each with its family.
        folder: of the files of their rounds, from which a stopped run resumes.
        work: carries out a task in a process of its own.
        overwrite: begin all anew.

    Raises:
        UserError: a file holds something else, or was written on another machine.
    """
    findings = []
    for family, plan in plans:
        failed = None
        with BenchLedger(folder / f"gpu-{name_of(family, plan)}.jsonl", plan, overwrite=overwrite) as ledger:
            try:
                Sweep(plan, ledger, work).run()
            except (CannotRunError, RuntimeError) as error:
                failed = str(error).strip().splitlines()[-1]
                warn(f"{name_of(family, plan)}: {failed}")
            findings.append(Finding(family, plan, ledger.on, results_of(plan, ledger), failed))
    return findings


def table(findings: Sequence[Finding], device: str | None) -> Table:
    """One row per family, precision, kind of attention and size, and in every preset's column its speed-up.

    Args:
        findings: those that failed have no rows.
        device: whose estimate stands beside what was measured; None for none.
    """
    head = ["model", "type", "attention", "size", "unmerged, ms", *by_strength()]
    result = Table(head, left=4)
    for finding in findings:
        for setting in finding.plan.settings if finding.failed is None else ():
            by_name = {each.variant.name: each for each in finding.results if each.setting == setting}
            unmerged = next(each for each in finding.results if each.setting == setting)
            result.add(
                _title(finding), finding.plan.dtype, setting.attention,
                f"{setting.size}x{setting.size}", _milliseconds(unmerged),
                *(_cell(by_name[PRESETS[name]], finding.family, name, device) for name in by_strength()),
            )  # fmt: skip
    return result


def _title(finding: Finding) -> str:
    """The family's, but a tiny model's own name: it tells nothing of the family."""
    model = finding.plan.model
    return FAMILIES[finding.family].title if MODELS[finding.family] == model else model


def _milliseconds(result: Result) -> str:
    if result.out_of_memory or result.seconds is None:
        return OUT_OF_MEMORY
    return f"{1000 * result.seconds.median:.2f}"


def _cell(result: Result, family: str, preset: str, device: str | None) -> str:
    """``1.07x (1.05x to 1.08x), estimated 1.04x``; milliseconds where the unmerged model did not fit."""
    if result.speed_up is None:
        return _milliseconds(result) + ("" if result.out_of_memory else " ms")
    measured = result.speed_up.format("{:.2f}x".format)
    expected = _expected(result.setting, family, device)
    return measured if expected is None else f"{measured}, estimated {expected[preset]:.2f}x"


def _expected(setting: Setting, family: str, device: str | None) -> dict[str, float] | None:
    """The estimated speed-ups by preset; None where the estimate does not know such a call."""
    if device is None or setting.attention not in FUSED:
        return None
    estimate = estimated(family, setting.size, device)
    return None if estimate is None else {name: estimate.speed_up(name) for name in estimate.presets}
