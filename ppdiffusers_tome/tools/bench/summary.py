"""What a benchmark found: medians, speed-ups from paired rounds, shares of the limit; as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ppdiffusers_tome.tools.bench.contenders import CONTENDERS, FREE, NONE
from ppdiffusers_tome.tools.bench.ledger import MEMORY, TIME, BenchLedger
from ppdiffusers_tome.tools.bench.plan import Entry, Plan, Setting
from ppdiffusers_tome.tools.measuring.spread import Spread
from ppdiffusers_tome.tools.measuring.units import NOT_MEASURED, format_bytes

OUT_OF_MEMORY = "out of memory"
UNITS = {"unet": "seconds per UNet call", "pipeline": "seconds per image"}


@dataclass(frozen=True)
class Result:
    """One entry in one setting.

    Attributes:
        setting, entry: what was measured.
        seconds: of a UNet call, or of a picture; None where nothing was timed.
        speed_up: how many times as fast as the model without merging, from the rounds in which both ran.
        share_of_free: ``speed_up`` divided by that of the free contender at the same ratio, in the same rounds.
        out_of_memory: it did not fit when it was to be timed.
        peak_bytes: the most memory Paddle's tensors held in one step, weights included.
        resident_peak_bytes: the same of the whole process, on a CPU.
        peak_out_of_memory: it did not fit when its memory was to be measured.
    """

    setting: Setting
    entry: Entry
    seconds: Spread | None
    speed_up: Spread | None
    share_of_free: Spread | None
    out_of_memory: bool
    peak_bytes: int | None
    resident_peak_bytes: int | None
    peak_out_of_memory: bool

    def fits(self, limit_bytes: int) -> bool | None:
        """Whether the whole process (on a GPU: the tensors) stayed within a limit; None where it was not measured."""
        if self.peak_out_of_memory:
            return False
        peak = self.peak_bytes if self.resident_peak_bytes is None else self.resident_peak_bytes
        return None if peak is None else peak <= limit_bytes


def results(plan: Plan, ledger: BenchLedger) -> list[Result]:
    """Every entry in every setting, as far as it was measured."""
    return [_result(plan, ledger, setting, entry) for setting in plan.settings for entry in plan.entries]


def _result(plan: Plan, ledger: BenchLedger, setting: Setting, entry: Entry) -> Result:
    out_of_memory = ledger.out_of_memory(setting, entry, TIME)
    rounds = list(ledger.rounds(setting).values()) if not out_of_memory else []
    free = Entry(FREE, entry.ratio)
    peaks = ledger.peaks(setting, entry) or {"peak_bytes": None, "resident_peak_bytes": None}
    return Result(
        setting, entry,
        seconds=_of([seconds[entry.name] for seconds in rounds if entry.name in seconds]),
        speed_up=_times_as_fast(rounds, entry, Entry(NONE)),
        share_of_free=_times_as_fast(rounds, entry, free) if entry.ratio is not None else None,
        out_of_memory=out_of_memory,
        peak_out_of_memory=ledger.out_of_memory(setting, entry, MEMORY),
        **peaks,
    )  # fmt: skip


def _times_as_fast(rounds: Sequence[Mapping[str, float]], entry: Entry, other: Entry) -> Spread | None:
    """How many times as fast an entry ran as another, round by round. Their speed-ups have the same quotient."""
    both = [seconds for seconds in rounds if entry.name in seconds and other.name in seconds]
    return _of([seconds[other.name] / seconds[entry.name] for seconds in both])


def _of(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values else None


def notes(plan: Plan, on: Mapping[str, Any], limit_bytes: int | None) -> list[str]:
    """What a reader must know to understand the numbers and to repeat the run."""
    step = "one call of the UNet" if plan.what == "unet" else "one denoising step and decoding"
    level = "the finest level" if plan.max_downsample is None else f"down to level {plan.max_downsample}"
    guidance = "" if plan.guidance_scale is None else f", guidance {plan.guidance_scale:g}"
    lines = [
        f"{plan.model} model, {plan.dtype}, {plan.steps} steps{guidance}, seed {plan.seed}; merging around "
        f"self-attention at {level}",
        ", ".join(f"{name} {value}" for name, value in on.items() if name != "memory"),
        f"{UNITS[plan.what]}: mean over the steps of a run"
        f"{'' if plan.what == 'unet' else ' with decoding, divided by the batch'}; median of {plan.repeats} rounds "
        "(lowest to highest), in each of which all contenders take turns on the same inputs",
        f"speed-up: seconds of '{NONE}' / own seconds, median over the rounds; share of {FREE}: speed-up / speed-up of "
        f"'{FREE}' at the same ratio, likewise",
    ]
    if plan.memory:
        lines.append(
            f"peak memory: in {step}, weights included, each in a fresh process: {on.get('memory')}, and on a CPU "
            "the resident memory of the whole process"
        )
    if limit_bytes is not None:
        lines.append(f"fits: the whole process (on a GPU: the tensors) stays within {limit_bytes / 2**30:g} GiB")
    named = dict.fromkeys(entry.contender for entry in plan.entries)
    return [*lines, *(f"{name}: {CONTENDERS[name].meaning}" for name in named)]


def markdown(title: str, notes: Sequence[str], plan: Plan, found: Sequence[Result], limit_bytes: int | None) -> str:
    """Two tables: speeds at a glance, a row a setting; and everything, a row an entry."""
    lines = [f"# {title}", "", *(f"- {note}" for note in notes), ""]
    if plan.repeats:
        lines += [*_overview(plan, found), ""]
    head = ["setting", "contender", UNITS[plan.what], "speed-up", f"share of {FREE}"]
    head += ["peak memory", "resident"] if plan.memory else []
    head += [f"fits {limit_bytes / 2**30:g} GiB"] if limit_bytes is not None else []
    lines += [f"| {' | '.join(head)} |", f"|---|---|{'---:|' * (len(head) - 2)}"]
    for result in found:
        lines.append(f"| {' | '.join(_row(result, plan, limit_bytes))} |")
    return "\n".join(lines) + "\n"


def _overview(plan: Plan, found: Sequence[Result]) -> list[str]:
    """A row a setting, a column an entry: ``12.30 s (1.39x)``."""
    lines = [
        f"| size | batch | attention | {' | '.join(entry.name for entry in plan.entries)} |",
        f"|---:|---:|---|{'---:|' * len(plan.entries)}",
    ]
    for setting in plan.settings:
        cells = [_glance(result) for result in found if result.setting == setting]
        lines.append(f"| {setting.size} | {setting.batch} | {setting.attention} | {' | '.join(cells)} |")
    return lines


def _glance(result: Result) -> str:
    if result.out_of_memory:
        return OUT_OF_MEMORY
    if result.seconds is None:
        return NOT_MEASURED
    speed_up = "" if result.speed_up is None else f" ({result.speed_up.median:.2f}x)"
    return f"{format_seconds(result.seconds.median)}{speed_up}"


def _row(result: Result, plan: Plan, limit_bytes: int | None) -> list[str]:
    if result.out_of_memory:
        speeds = [OUT_OF_MEMORY, "-", "-"]
    else:
        speeds = [_spread(result.seconds, format_seconds), _spread(result.speed_up, "{:.2f}x".format)]
        speeds.append(_spread(result.share_of_free, "{:.1%}".format))
    cells = [result.setting.name, result.entry.name, *speeds]
    if plan.memory:
        resident = result.resident_peak_bytes
        if result.peak_out_of_memory:
            cells += [OUT_OF_MEMORY, "-"]
        else:
            cells += [format_bytes(result.peak_bytes), "-" if resident is None else format_bytes(resident)]
    if limit_bytes is not None:
        cells.append({True: "yes", False: "no", None: "-"}[result.fits(limit_bytes)])
    return cells


def format_seconds(seconds: float) -> str:
    """``12.345`` -> ``12.35 s``, ``0.01234`` -> ``0.0123 s``."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds:.3g} s"


def _spread(spread: Spread | None, format_one: Any) -> str:
    if spread is None:
        return "-"
    return f"{format_one(spread.median)} ({format_one(spread.low)} to {format_one(spread.high)})"


def as_json(plan: Plan, on: Mapping[str, Any], found: Sequence[Result], limit_bytes: int | None) -> dict[str, Any]:
    """Everything as plain values."""
    cells = []
    for result in found:
        fits = None if limit_bytes is None else result.fits(limit_bytes)
        cells.append({**asdict(result), "entry": result.entry.name, **asdict(result.entry), "fits": fits})
    return {"plan": plan.to_dict(), "on": dict(on), "memory_limit_bytes": limit_bytes, "cells": cells}
