"""The results of a benchmark: medians, speed-ups and peaks, in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.tools.bench.variants import FREE, NONE, VARIANTS, split_label
from ppdiffusers_tome.tools.bench.workloads import PIPELINE, Case
from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.stats import Spread
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED, format_bytes, format_seconds

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Result:
    """One variant in one case.

    Attributes:
        case, variant: what was measured.
        rounds: how many rounds it was timed in.
        seconds: of a denoiser call, or of an image; None where nothing was timed.
        speed_up: how many times as fast as the model without merging, from the rounds in which both ran.
        share_of_free: ``speed_up`` divided by that of ``free`` at the same ratio, in the same rounds.
        out_of_memory: it did not fit while it was timed.
        peak_bytes: the most memory Paddle's tensors held in one step, weights included.
        resident_peak_bytes: the same of the whole process, on a CPU.
        peak_out_of_memory: it did not fit while its memory was measured.
    """

    case: Case
    variant: str
    rounds: int
    seconds: Spread | None
    speed_up: Spread | None
    share_of_free: Spread | None
    out_of_memory: bool
    peak_bytes: int | None
    resident_peak_bytes: int | None
    peak_out_of_memory: bool

    @property
    def process_bytes(self) -> int | None:
        """Peak memory of the process, on a GPU of the tensors, if measured."""
        return self.peak_bytes if self.resident_peak_bytes is None else self.resident_peak_bytes

    def format(self) -> str:
        """Return ``5.38 s (1.58x)``."""
        if self.seconds is None:
            return OUT_OF_MEMORY if self.out_of_memory else NOT_MEASURED
        speed_up = "" if self.speed_up is None or self.variant == NONE else f" ({self.speed_up.median:.2f}x)"
        return f"{format_seconds(self.seconds.median)}{speed_up}"


def summarize(case: Case, repeats: int, variants: Sequence[str], ledger: Ledger) -> list[Result]:
    """Return the result of every variant in a case."""
    rounds = [ledger.get(case.key("round", number), {}) for number in range(repeats)]
    results = []
    for variant in variants:
        too_large = case.key("too large", variant) in ledger
        timed = [] if too_large else [seconds[variant] for seconds in rounds if variant in seconds]
        peaks = ledger.get(case.key("memory", variant), {})
        ratio = split_label(variant)[1]
        results.append(Result(
            case, variant, len(timed),
            seconds=Spread.from_values(timed) if timed else None,
            speed_up=_compare(rounds, variant, NONE) if timed else None,
            share_of_free=_compare(rounds, variant, f"{FREE} {ratio:g}") if timed and ratio is not None else None,
            out_of_memory=too_large,
            peak_out_of_memory=peaks is None,
            **{name: (peaks or {}).get(name) for name in ("peak_bytes", "resident_peak_bytes")},
        ))  # fmt: skip
    return results


def _compare(rounds: Sequence[Mapping[str, float]], variant: str, other: str) -> Spread | None:
    """Return how many times as fast a variant ran as another, round by round."""
    both = [seconds for seconds in rounds if variant in seconds and other in seconds]
    if not both:
        return None
    return Spread.from_quotients([seconds[other] for seconds in both], [seconds[variant] for seconds in both])


def make_notes(results: Sequence[Result], machine: Mapping[str, Any]) -> list[str]:
    """Return notes that explain the numbers and how to repeat the run."""
    case = results[0].case
    unit, divided = ("an image", ", divided by the batch") if case.what == PIPELINE else ("a denoiser call", "")
    guidance = "" if case.guidance_scale is None else f", guidance {case.guidance_scale:g}"
    names = dict.fromkeys(split_label(result.variant)[0] for result in results)
    return [
        f"{case.model}, {case.dtype}, {case.steps} steps{guidance}",
        ", ".join(f"{name}: {value}" for name, value in machine.items() if name != "memory"),
        f"seconds of {unit}: mean over the steps of a run{divided}; median of the rounds (lowest to highest), in each "
        "of which all variants take turns on the same inputs",
        f"speed-up: seconds of '{NONE}' / own seconds, median over the rounds; share of {FREE}: speed-up / speed-up of "
        f"'{FREE}' at the same ratio, likewise",
        f"peak memory: in one step, weights included, each in a fresh process: {machine.get('memory')}; resident: of "
        "the whole process",
        *(f"{name}: {VARIANTS[name].meaning}" for name in names),
    ]


def make_table(results: Sequence[Result], memory_limit: int | None = None) -> Table:
    """Return a row per case and variant, with ranges and memory."""
    has_memory = any(result.peak_bytes is not None or result.peak_out_of_memory for result in results)
    headings = ["setting", "variant", "seconds", "speed-up", f"share of {FREE}"]
    headings += ["peak memory", "resident"] if has_memory else []
    headings += [] if memory_limit is None else [f"fits {memory_limit / 2**30:g} GiB"]
    table = Table(headings, left=2)
    for result in results:
        seconds = OUT_OF_MEMORY if result.out_of_memory else _format(result.seconds, format_seconds)
        cells = [result.case.name, result.variant, seconds, _format(result.speed_up, "{:.2f}x".format)]
        cells.append(_format(result.share_of_free, "{:.1%}".format))
        if has_memory:
            cells.append(OUT_OF_MEMORY if result.peak_out_of_memory else format_bytes(result.peak_bytes))
            cells.append("-" if result.resident_peak_bytes is None else format_bytes(result.resident_peak_bytes))
        if memory_limit is not None:
            fits = result.process_bytes is not None and result.process_bytes <= memory_limit
            is_known = result.process_bytes is not None or result.peak_out_of_memory
            cells.append(("yes" if fits else "no") if is_known else "-")
        table.add(*cells)
    return table


def _format(spread: Spread | None, format_one: Callable[[float], str]) -> str:
    return "-" if spread is None else spread.format(format_one)
