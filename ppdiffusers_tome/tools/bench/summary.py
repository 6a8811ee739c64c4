"""The results of a sweep: medians, speed-ups from paired rounds, shares of the limit; as tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ppdiffusers_tome.tools.bench.contenders import CONTENDERS, FREE, NONE
from ppdiffusers_tome.tools.bench.ledger import MEMORY, TIME, BenchLedger
from ppdiffusers_tome.tools.bench.plan import Plan, Setting, Variant
from ppdiffusers_tome.tools.cli.console.tables import Table
from ppdiffusers_tome.tools.measure.spread import Spread
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED, format_bytes, format_seconds

OUT_OF_MEMORY = "out of memory"
UNITS = {"unet": "seconds per UNet call", "pipeline": "seconds per image"}


@dataclass(frozen=True)
class Result:
    """One variant in one setting.

    Attributes:
        setting, variant: what was measured.
        seconds: of a UNet call, or of a picture; None where nothing was timed.
        speed_up: how many times as fast as the model without merging, from the rounds in which both ran.
        share_of_free: ``speed_up`` divided by that of the free contender at the same ratio, in the same rounds.
        out_of_memory: it did not fit when it was to be timed.
        peak_bytes: the most memory Paddle's tensors held in one step, weights included.
        resident_peak_bytes: the same of the whole process, on a CPU.
        peak_out_of_memory: it did not fit when its memory was to be measured.
    """

    setting: Setting
    variant: Variant
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


def results_of(plan: Plan, ledger: BenchLedger) -> list[Result]:
    """Every variant in every setting, as far as it was measured."""
    return [_result(plan, ledger, setting, variant) for setting in plan.settings for variant in plan.variants]


def _result(plan: Plan, ledger: BenchLedger, setting: Setting, variant: Variant) -> Result:
    out_of_memory = ledger.out_of_memory(setting, variant, TIME)
    rounds = list(ledger.rounds(setting).values()) if not out_of_memory else []
    seconds = [taken[variant.name] for taken in rounds if variant.name in taken]
    peaks = ledger.peaks(setting, variant) or {"peak_bytes": None, "resident_peak_bytes": None}
    return Result(
        setting, variant,
        seconds=Spread.of(seconds) if seconds else None,
        speed_up=_times_as_fast(rounds, variant, Variant(NONE)),
        share_of_free=(
            None if variant.ratio is None else _times_as_fast(rounds, variant, Variant(FREE, variant.ratio))
        ),
        out_of_memory=out_of_memory,
        peak_out_of_memory=ledger.out_of_memory(setting, variant, MEMORY),
        **peaks,
    )  # fmt: skip


def _times_as_fast(rounds: Sequence[Mapping[str, float]], variant: Variant, other: Variant) -> Spread | None:
    """How many times as fast a variant ran as another, round by round. Their speed-ups have the same quotient."""
    both = [seconds for seconds in rounds if variant.name in seconds and other.name in seconds]
    if not both:
        return None
    return Spread.of_quotients([seconds[other.name] for seconds in both], [seconds[variant.name] for seconds in both])


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
    named = dict.fromkeys(variant.contender for variant in plan.variants)
    return [*lines, *(f"{name}: {CONTENDERS[name].meaning}" for name in named)]


def speeds(plan: Plan, results: Sequence[Result]) -> Table:
    """Speeds at a glance, a row a setting and a column a variant: ``12.30 s (1.39x)``."""
    table = Table(["size", "batch", "attention", *(variant.name for variant in plan.variants)], left=3)
    for setting in plan.settings:
        cells = [_glance(result) for result in results if result.setting == setting]
        table.add(setting.size, setting.batch, setting.attention, *cells)
    return table


def everything(plan: Plan, results: Sequence[Result], limit_bytes: int | None) -> Table:
    """A row a variant in a setting."""
    head = ["setting", "contender", UNITS[plan.what], "speed-up", f"share of {FREE}"]
    head += ["peak memory", "resident"] if plan.memory else []
    head += [f"fits {limit_bytes / 2**30:g} GiB"] if limit_bytes is not None else []
    return Table(head, [_row(result, plan, limit_bytes) for result in results], left=2)


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
    cells = [result.setting.name, result.variant.name, *speeds]
    if plan.memory:
        resident = result.resident_peak_bytes
        if result.peak_out_of_memory:
            cells += [OUT_OF_MEMORY, "-"]
        else:
            cells += [format_bytes(result.peak_bytes), "-" if resident is None else format_bytes(resident)]
    if limit_bytes is not None:
        cells.append({True: "yes", False: "no", None: "-"}[result.fits(limit_bytes)])
    return cells


def _spread(spread: Spread | None, format_one: Callable[[float], str]) -> str:
    return "-" if spread is None else spread.format(format_one)


def as_json(plan: Plan, on: Mapping[str, Any], results: Sequence[Result], limit_bytes: int | None) -> dict[str, Any]:
    """Everything as plain values."""
    cells = []
    for result in results:
        fits = None if limit_bytes is None else result.fits(limit_bytes)
        cells.append({**asdict(result), "variant": result.variant.name, **asdict(result.variant), "fits": fits})
    return {"plan": plan.to_dict(), "on": dict(on), "memory_limit_bytes": limit_bytes, "cells": cells}
