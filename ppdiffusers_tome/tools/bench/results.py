"""What ``bench results`` measures: one UNet call at a few sizes, everybody in turns, and tomesd under PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.bench.contenders import FREE, NONE, OURS, OURS_TILE, PORT, PRESETS
from ppdiffusers_tome.tools.bench.ledger import BenchLedger
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS
from ppdiffusers_tome.tools.bench.summary import results_of
from ppdiffusers_tome.tools.bench.sweep import Sweep
from ppdiffusers_tome.tools.bench.torch_python import run_with_torch
from ppdiffusers_tome.tools.bench.workload import TEXT_TOKENS
from ppdiffusers_tome.tools.measure.spread import Spread

MODELS = tuple(name for name in RANDOM_UNETS if name.startswith("sd15"))
RATIO, BATCH = 0.5, 1
CONTENDERS = (NONE, PORT, OURS, OURS_TILE, *PRESETS.values(), FREE)
TORCH, TOMESD = "torch", "tomesd"
# Seconds of an unmerged call at 512x512 on two cores of a server: of attention, which grows with the square of the
# pixels, and of all else. And of a process before its first call.
_ATTENTION, _ELSE, _START = 2.0, 6.0, 30.0


@dataclass(frozen=True)
class Cell:
    """One contender at one size.

    Attributes:
        size: height and width of the picture in pixels.
        contender: of ``CONTENDERS``, or ``TORCH`` or ``TOMESD``.
        seconds: of a UNet call; None where it did not fit into memory.
        speed_up: how many times as fast as unmerged, round by round; of ``TOMESD`` as ``TORCH``, which is unmerged too.
    """

    size: int
    contender: str
    seconds: Spread | None
    speed_up: Spread | None


def plan_of(model: str, attention: str, size: int, repeats: int) -> Plan:
    """All contenders at one size: those of several sizes share a ledger."""
    return Plan(
        what="unet", model=model, dtype="float32", steps=1, contenders=CONTENDERS, ratios=(RATIO,), max_downsample=None,
        seed=0, guidance_scale=None, sizes=(size,), batches=(BATCH,), attentions=(attention,), repeats=repeats,
        memory=False,
    )  # fmt: skip


def measure(plans: Sequence[Plan], ledger: BenchLedger, torch_python: Path | None) -> None:
    """Measure what is left of each plan, and say before how long it will take.

    Args:
        plans: of ``plan_of``.
        ledger: what was measured so far; results are added to it as they come.
        torch_python: the interpreter of an environment with torch, diffusers and tomesd; None leaves them out.

    Raises:
        UserError: ``torch_python`` cannot run tomesd, or the ledger was begun on another machine.
        RuntimeError: a process failed for another reason than memory.
    """
    minutes = {plan.sizes[0]: minutes_left(plan, ledger, torch_python) for plan in plans}
    _say(f"about {sum(minutes.values()):.0f} minutes on 2 cores of a server; stopped, the same command resumes")
    if not _of_first(ledger, "date"):
        ledger.add({"date": date.today().isoformat()})
    for plan in plans:
        size = plan.sizes[0]
        _say(f"{size}x{size}: about {minutes[size]:.0f} of them")
        if torch_python is not None and len(_torch_rounds(plan, ledger)) < plan.repeats:
            ledger.add({"size": size, **_run_tomesd(plan, torch_python)})
        Sweep(plan, ledger, warm_ups=1).run()  # at 1024x1024 a call takes a minute


def cells_of(plans: Sequence[Plan], ledger: BenchLedger) -> list[Cell]:
    """All that was measured, size by size."""
    cells = []
    for plan in plans:
        size = plan.sizes[0]
        found = results_of(plan, ledger)
        cells += [Cell(size, each.variant.contender, each.seconds, each.speed_up) for each in found]
        rounds = _torch_rounds(plan, ledger)
        if rounds:
            unmerged, merged = ([seconds[name] for seconds in rounds] for name in (TORCH, TOMESD))
            cells.append(Cell(size, TORCH, Spread.of(unmerged), Spread.of_quotients(unmerged, unmerged)))
            cells.append(Cell(size, TOMESD, Spread.of(merged), Spread.of_quotients(unmerged, merged)))
    return cells


def as_json(plans: Sequence[Plan], ledger: BenchLedger) -> dict[str, Any]:
    """Everything as plain values, from which pages are drawn."""
    plan = plans[0]
    return {
        "date": _of_first(ledger, "date"), "on": ledger.on, "torch_on": _of_first(ledger, "torch_on"),
        "model": plan.model, "dtype": plan.dtype, "attention": plan.attentions[0], "batch": BATCH, "ratio": RATIO,
        "rounds": {str(each.sizes[0]): len(ledger.rounds(each.settings[0])) for each in plans},
        "cells": [asdict(cell) for cell in cells_of(plans, ledger)],
    }  # fmt: skip


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _of_first(ledger: BenchLedger, key: str) -> Any:
    """What the first line that has such a key says; None where none does."""
    return next((line[key] for line in ledger.lines if key in line), None)


def minutes_left(plan: Plan, ledger: BenchLedger, torch_python: Path | None) -> float:
    """What is left of a plan takes, on 2 cores of a server and as if merging saved nothing."""
    rounds = plan.repeats - len(ledger.rounds(plan.settings[0]))
    torch_rounds = 0 if torch_python is None else plan.repeats - len(_torch_rounds(plan, ledger))
    calls = sum(1 + each * number for each, number in ((rounds, len(plan.variants)), (torch_rounds, 2)) if each > 0)
    area = (plan.sizes[0] / 512) ** 2
    return (calls * (_ELSE * area + _ATTENTION * area**2) + (_START if calls else 0)) / 60


def _torch_rounds(plan: Plan, ledger: BenchLedger) -> list[dict[str, float]]:
    """Seconds by name of every round under PyTorch at the plan's size, of the run that made the most."""
    found = [line["torch"] for line in ledger.lines if line.get("size") == plan.sizes[0] and "torch" in line]
    return max(found, key=len, default=[])


def _run_tomesd(plan: Plan, torch_python: Path) -> dict[str, Any]:
    found = run_with_torch(torch_python, "tomesd_unet.py", {
        "config": RANDOM_UNETS[plan.model], "size": plan.sizes[0], "batch": BATCH, "ratio": RATIO,
        "repeats": plan.repeats, "text_tokens": TEXT_TOKENS, "unmerged": TORCH, "merged": TOMESD,
    })  # fmt: skip
    return {"torch": found["rounds"], "torch_on": found["on"]}
