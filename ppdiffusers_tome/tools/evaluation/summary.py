"""What an evaluation found: a row a configuration, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ppdiffusers_tome.tools.bench.summary import format_seconds
from ppdiffusers_tome.tools.evaluation.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluation.features import CLIP_SCORE, Clip, Inception
from ppdiffusers_tome.tools.evaluation.frontier import on_frontier
from ppdiffusers_tome.tools.evaluation.ledger import EvaluationLedger, Result, Turn
from ppdiffusers_tome.tools.measuring.measure import highest
from ppdiffusers_tome.tools.measuring.spread import Spread
from ppdiffusers_tome.tools.measuring.units import format_bytes

_MEANINGS = {
    CLIP_SCORE: "100 times the cosine of picture and prompt; more is better",
    Clip.distance_name: "to the real pictures, less is better; not comparable with FID",
    Inception.distance_name: "to the real pictures, less is better; few pictures make it larger",
}


@dataclass(frozen=True)
class Row:
    """All pictures of one configuration.

    Attributes:
        configuration: what drew them.
        results: picture by picture.
        seconds, block_seconds: of the whole call, and inside the blocks at the levels where anyone merges.
        speed_up, block_speed_up: the unmerged picture's seconds by its own, turn by turn.
        denoising_peak_bytes, peak_bytes: the most over the pictures; None when one could not be measured.
        psnr, ssim: against the unmerged pictures; None for those themselves.
        obedience: share of the pictures that show what was asked; None where nobody can tell.
        scores: what needs a network, by name.
        on_frontier, on_block_frontier: whether no other configuration is as good in both PSNR and speed-up (of the
            whole call, of the blocks) and better in one.
    """

    configuration: Configuration
    results: tuple[Result, ...]
    seconds: Spread
    block_seconds: Spread
    speed_up: Spread
    block_speed_up: Spread
    denoising_peak_bytes: int | None
    peak_bytes: int | None
    psnr: Spread | None
    ssim: Spread | None
    obedience: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    on_frontier: bool = False
    on_block_frontier: bool = False

    @property
    def likeness(self) -> float:
        """The median PSNR in dB; the unmerged picture is identical with itself."""
        return math.inf if self.psnr is None else self.psnr.median


def rows(
    configurations: Sequence[Configuration],
    turns: Sequence[Turn],
    levels: Sequence[int],
    ledger: EvaluationLedger,
    scores: Mapping[str, Mapping[str, float]],
) -> list[Row]:
    """Sum up by configuration, family by family.

    Args:
        configurations, turns: what is looked at; all of it must have been drawn.
        levels: where blocks count.
        ledger: where the findings are.
        scores: of each configuration, by name.
    """
    families = list(dict.fromkeys(configuration.family for configuration in configurations))
    unmerged = ledger.of_sitting(UNMERGED)
    found = []
    for configuration in sorted(configurations, key=lambda one: families.index(one.family)):
        results = ledger.results(configuration.name)
        mine = tuple(results[turn] for turn in turns)
        found.append(_row(configuration, mine, unmerged, levels, scores.get(configuration.name, {})))
    whole = on_frontier([(row.speed_up.median, row.likeness) for row in found])
    blocks = on_frontier([(row.block_speed_up.median, row.likeness) for row in found])
    return [
        replace(row, on_frontier=of_whole, on_block_frontier=of_blocks)
        for row, of_whole, of_blocks in zip(found, whole, blocks, strict=True)
    ]


def _row(
    configuration: Configuration,
    results: tuple[Result, ...],
    unmerged: Mapping[tuple[Turn, int], Result],
    levels: Sequence[int],
    scores: Mapping[str, float],
) -> Row:
    def in_blocks(result: Result) -> float:
        return sum(result.block_seconds[level] for level in levels)

    beside = [unmerged[result.turn, result.sitting] for result in results]
    pairs = list(zip(beside, results, strict=True))
    psnrs = [result.psnr for result in results if result.psnr is not None]
    ssims = [result.ssim for result in results if result.ssim is not None]
    judged = [result.obeys for result in results if result.obeys is not None]
    return Row(
        configuration, results,
        seconds=Spread.of([result.seconds for result in results]),
        block_seconds=Spread.of([in_blocks(result) for result in results]),
        speed_up=Spread.of([plain.seconds / result.seconds for plain, result in pairs]),
        block_speed_up=Spread.of([in_blocks(plain) / in_blocks(result) for plain, result in pairs]),
        denoising_peak_bytes=highest(result.denoising_peak_bytes for result in results),
        peak_bytes=highest(result.peak_bytes for result in results),
        psnr=Spread.of(psnrs) if psnrs else None,
        ssim=Spread.of(ssims) if ssims else None,
        obedience=sum(judged) / len(judged) if judged else None,
        scores=scores,
    )  # fmt: skip


def notes(
    run: Mapping[str, Any],
    on: Mapping[str, Any],
    num_turns: int,
    levels: Sequence[int],
    scores: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """What a reader must know to understand the numbers and to repeat the run."""
    prompts, seeds = run["prompts"], run["seeds"]
    given = dict.fromkeys(name for of_one in scores.values() for name in of_one)
    return [
        f"{run['model']} model, {run['width']}x{run['height']} pixels, {run['steps']} steps, {run['scheduler']}, "
        f"guidance {run['guidance_scale']:g}, {run['dtype']}",
        f"pictures a configuration: {num_turns} (prompts: {len(prompts)}, seeds: {', '.join(map(str, seeds))})",
        ", ".join(f"{name} {value}" for name, value in on.items() if name != "memory"),
        "seconds: the whole call of the pipeline, decoding included, after a warm-up; medians over the pictures",
        "seconds in blocks: inside the transformer blocks at level "
        f"{' and '.join(map(str, levels))}, where tokens merge, with matching, merging and unmerging",
        "speed-up: seconds of the unmerged picture / own seconds, same prompt and seed in the same turn; medians",
        f"peak memory: {on['memory']}, the most over the pictures; until the last denoising step, and with decoding",
        "PSNR (median, and the lowest) and SSIM (median): against the unmerged picture from the same noise",
        "frontier: no other configuration has as much PSNR and as much speed-up (of the blocks, of the whole) and more "
        "of one",
        *(f"{name}: {_MEANINGS[name]}" for name in given),
    ]


def markdown(title: str, notes: Sequence[str], found: Sequence[Row]) -> str:
    """The table, with columns for what was measured."""
    scores = list(dict.fromkeys(name for row in found for name in row.scores))
    obedience = any(row.obedience is not None for row in found)
    head = ["seconds in blocks", "speed-up of blocks", "seconds", "speed-up", "peak, denoising", "peak, all"]
    head += ["PSNR (dB)", "SSIM"]
    head += ["obeys"] if obedience else []
    head += scores
    lines = [
        f"# {title}", "", *(f"- {note}" for note in notes), "",
        f"| configuration | {' | '.join(head)} | frontier |",
        f"|---|{'---:|' * len(head)}---|",
    ]  # fmt: skip
    for row in found:
        cells = [
            row.configuration.name, format_seconds(row.block_seconds.median), f"{row.block_speed_up.median:.2f}x",
            format_seconds(row.seconds.median), f"{row.speed_up.median:.2f}x", format_bytes(row.denoising_peak_bytes),
            format_bytes(row.peak_bytes), _psnr(row), "-" if row.ssim is None else f"{row.ssim.median:.3f}",
        ]  # fmt: skip
        cells += [_share(row.obedience)] if obedience else []
        cells += [f"{row.scores[name]:.2f}" if name in row.scores else "-" for name in scores]
        lines.append(f"| {' | '.join(cells)} | {frontier_words(row)} |")
    return "\n".join(lines) + "\n"


def frontier_words(row: Row) -> str:
    """Which frontiers a configuration is on."""
    return " and ".join(
        name for name, on in (("blocks", row.on_block_frontier), ("whole", row.on_frontier)) if on
    )  # fmt: skip


def _psnr(row: Row) -> str:
    if row.psnr is None:
        return "-"
    if not math.isfinite(row.psnr.low):
        return "identical"
    median = f"{row.psnr.median:.1f}" if math.isfinite(row.psnr.median) else "identical"
    return f"{median} ({row.psnr.low:.1f})"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def as_json(
    run: Mapping[str, Any], on: Mapping[str, Any], levels: Sequence[int], found: Sequence[Row]
) -> dict[str, Any]:
    """Everything as plain values. An infinite PSNR, of identical pictures, is null beside an SSIM of 1."""
    cells = []
    for row in found:
        values = asdict(row) | {
            "configuration": row.configuration.to_dict(),
            "results": [result.to_dict() for result in row.results],
        }
        if row.psnr is not None:
            values["psnr"] = {name: value if math.isfinite(value) else None for name, value in values["psnr"].items()}
        cells.append(values)
    return {"run": dict(run), "on": dict(on), "levels": list(levels), "configurations": cells}
