"""What an evaluation or a comparison shows: one row per configuration, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.cli.console.tables import Page, Table
from ppdiffusers_tome.tools.evaluate import differences
from ppdiffusers_tome.tools.evaluate.configurations import Configuration
from ppdiffusers_tome.tools.evaluate.features import CLIP_SCORE, Clip, Inception
from ppdiffusers_tome.tools.evaluate.frontier import on_frontier
from ppdiffusers_tome.tools.evaluate.intervals import METHOD, Median
from ppdiffusers_tome.tools.evaluate.samples import Sample
from ppdiffusers_tome.tools.files import write_json, write_text
from ppdiffusers_tome.tools.generation.results import format_run
from ppdiffusers_tome.tools.measure.memory import highest_peak
from ppdiffusers_tome.tools.measure.similarity import FLIP_PPD, format_psnr
from ppdiffusers_tome.tools.measure.units import counted, format_bytes, format_seconds

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
        samples: picture by picture.
        seconds, speed_up: of the whole call; the unmerged picture's seconds divided by its own, case by case.
        block_seconds, block_speed_up: the same inside the blocks at the levels where anyone merges; None where blocks
            were not timed.
        denoising_peak_bytes, peak_bytes: the most over the pictures; None when one could not be measured.
        psnr, ssim, flip: similarity to the unmerged pictures; None for those themselves.
        prompt_adherence: share of the pictures that show what their prompt asks; None where nobody can tell.
        scores: what needs a network, by name.
        values: what was measured picture by picture, by the measures of ``differences``.
        on_frontier, on_block_frontier: whether no other configuration is as good in both PSNR and speed-up (of the
            whole call, of the blocks) and better in one.
    """

    configuration: Configuration
    samples: tuple[Sample, ...]
    seconds: Median
    speed_up: Median
    block_seconds: Median | None
    block_speed_up: Median | None
    denoising_peak_bytes: int | None
    peak_bytes: int | None
    psnr: Median | None
    ssim: Median | None
    flip: Median | None
    prompt_adherence: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    values: differences.Values = field(default_factory=dict)
    on_frontier: bool = False
    on_block_frontier: bool = False

    @property
    def similarity(self) -> float:
        """The median PSNR in dB; the unmerged picture is identical with itself."""
        return math.inf if self.psnr is None else self.psnr.median

    def to_dict(self) -> dict[str, Any]:
        """As plain values. An infinite PSNR, of identical pictures, is null beside an SSIM of 1."""
        values = {name: value for name, value in asdict(self).items() if name not in ("psnr", "values")}
        return values | {
            "configuration": self.configuration.to_dict(),
            "samples": [sample.to_dict() for sample in self.samples],
            "psnr_db": None if self.psnr is None else self.psnr.to_dict(),
        }


def rows(
    configurations: Sequence[Configuration],
    samples: Mapping[str, Sequence[Sample]],
    unmerged: Iterable[Sample],
    levels: Sequence[int] = (),
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Row]:
    """Sum up by configuration, family by family.

    Args:
        configurations: what is looked at.
        samples: of each, by name.
        unmerged: the unmerged pictures of every case and run.
        levels: where blocks count; none where they were not timed.
        scores: of each configuration, by name.
    """
    families = list(dict.fromkeys(each.family for each in configurations))
    references = {(sample.case, sample.run): sample for sample in unmerged}
    found = [
        _row(each, samples[each.name], references, levels, (scores or {}).get(each.name, {}))
        for each in sorted(configurations, key=lambda each: families.index(each.family))
    ]
    whole = on_frontier([(row.speed_up.median, row.similarity) for row in found])
    blocks = on_frontier([(row.block_speed_up.median if row.block_speed_up else 1.0, row.similarity) for row in found])
    return [
        replace(row, on_frontier=of_whole, on_block_frontier=of_blocks and row.block_speed_up is not None)
        for row, of_whole, of_blocks in zip(found, whole, blocks, strict=True)
    ]


def _row(
    configuration: Configuration,
    samples: Sequence[Sample],
    references: Mapping[tuple[Any, int], Sample],
    levels: Sequence[int],
    scores: Mapping[str, float],
) -> Row:
    drawn = [sample.drawn for sample in samples]
    unmerged = [references[sample.case, sample.run].drawn for sample in samples]
    in_blocks = [sum(each.block_seconds[level] for level in levels) for each in drawn]
    unmerged_in_blocks = [sum(each.block_seconds[level] for level in levels) for each in unmerged]
    speed_ups = [one.seconds / own.seconds for one, own in zip(unmerged, drawn, strict=True)]
    values = {differences.SPEED_UP: speed_ups}
    if levels:
        block_speed_ups = [one / own for one, own in zip(unmerged_in_blocks, in_blocks, strict=True)]
        values[differences.BLOCK_SPEED_UP] = block_speed_ups
    if similarities := [each.similarity for each in drawn if each.similarity is not None]:
        values |= {
            differences.PSNR: [each.psnr for each in similarities],
            differences.SSIM: [each.ssim for each in similarities],
            differences.FLIP: [each.flip for each in similarities],
        }
    judged = [each.follows_prompt for each in drawn if each.follows_prompt is not None]
    return Row(
        configuration, tuple(samples),
        seconds=Median.of([each.seconds for each in drawn]),
        speed_up=Median.of(speed_ups),
        block_seconds=Median.of(in_blocks) if levels else None,
        block_speed_up=Median.of(block_speed_ups) if levels else None,
        denoising_peak_bytes=highest_peak(each.denoising_peak_bytes for each in drawn),
        peak_bytes=highest_peak(each.peak_bytes for each in drawn),
        psnr=Median.of(values[differences.PSNR]) if similarities else None,
        ssim=Median.of(values[differences.SSIM]) if similarities else None,
        flip=Median.of(values[differences.FLIP]) if similarities else None,
        prompt_adherence=sum(judged) / len(judged) if judged else None,
        scores=scores, values=values,
    )  # fmt: skip


def notes(run: Mapping[str, Any], on: Mapping[str, Any], rows: Sequence[Row], levels: Sequence[int] = ()) -> list[str]:
    """What a reader must know to understand the numbers and to repeat the run; the first two say what was drawn."""
    cases = [sample.case for sample in rows[0].samples]
    prompts, seeds = {case.prompt for case in cases}, dict.fromkeys(case.seed for case in cases)
    lines = [
        format_run(run),
        f"pictures of each configuration: {len(cases)}, from {counted(len(prompts), 'prompt')} and "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        ", ".join(f"{name} {value}" for name, value in on.items() if name != "memory"),
        "seconds: the whole call of the pipeline, decoding included, after a warm-up; medians over the pictures",
        "speed-up: seconds of the unmerged picture / own seconds, same prompt and seed in the same run; medians",
        f"peak memory: {on['memory']}, the most over the pictures; until the last denoising step, and with decoding",
        "PSNR (median, and the lowest in parentheses) and SSIM (median): against the unmerged picture from the same "
        "noise",
        f"FLIP (median): how much the two differ to the eye, 0 to 1, less is better; LDR-FLIP at {FLIP_PPD} pixels a "
        "degree",
    ]
    if levels:
        lines += [
            "seconds in blocks: inside the transformer blocks at level "
            f"{' and '.join(map(str, levels))}, where tokens merge, with matching, merging and unmerging",
            "frontier: no other configuration has as much PSNR and as much speed-up (of the blocks, of the whole) and "
            "more of at least one",
        ]
    return lines + [f"{name}: {_MEANINGS[name]}" for name in _score_names(rows)]


def table(rows: Sequence[Row]) -> Table:
    """One row per configuration, with columns for what was measured."""
    columns: dict[str, Callable[[Row], str]] = {"configuration": lambda row: row.configuration.name}
    timed = any(row.block_seconds is not None for row in rows)
    if timed:
        columns["frontier"] = _frontiers
        columns["seconds in blocks"] = lambda row: _median(row.block_seconds, format_seconds)
        columns["speed-up of blocks"] = lambda row: _median(row.block_speed_up, "{:.2f}x".format)
    columns |= {
        "seconds": lambda row: _median(row.seconds, format_seconds),
        "speed-up": lambda row: _median(row.speed_up, "{:.2f}x".format),
        "peak memory, denoising": lambda row: format_bytes(row.denoising_peak_bytes),
        "peak memory, all": lambda row: format_bytes(row.peak_bytes),
        "PSNR (dB)": lambda row: _format_psnr(row.psnr),
        "SSIM": lambda row: _median(row.ssim, "{:.3f}".format),
        "FLIP": lambda row: _median(row.flip, "{:.3f}".format),
    }
    if any(row.prompt_adherence is not None for row in rows):
        columns["prompt adherence"] = lambda row: "-" if row.prompt_adherence is None else f"{row.prompt_adherence:.1%}"
    for name in _score_names(rows):
        columns[name] = lambda row, name=name: f"{row.scores[name]:.2f}" if name in row.scores else "-"  # type: ignore[misc]
    return Table(list(columns), [[cell(row) for cell in columns.values()] for row in rows], left=1 + timed)


def write_table(
    paths: Sequence[Path], title: str, notes: Sequence[str], rows: Sequence[Row], other: Mapping[str, Any], *,
    overwrite: bool,
) -> None:  # fmt: skip
    """Write the table as Markdown and JSON, and print it and the paths of the files.

    Args:
        paths: of the picture, which is there already, the Markdown and the JSON.
        title, notes: what stands over the table, before which differences are significant.
        rows: of the table.
        other: what the JSON holds besides.
        overwrite: whether files may be replaced.

    Raises:
        UserError: a file exists and must not be replaced, or cannot be written.
    """
    measured = [(row.configuration, row.values) for row in rows]
    found = differences.differences(measured)
    told = [each for each in found if each.of.interval is not None]
    tables = [table(rows), *([differences.table(told)] if told else [])]
    page = Page(title, [*notes, *differences.describe_differences(measured, found)], tables)
    write_text(paths[1], page.markdown(), overwrite=overwrite)
    described = {"configurations": [row.to_dict() for row in rows], "differences": [each.to_dict() for each in found]}
    write_json(paths[2], {**other, "intervals": METHOD, **described}, overwrite=overwrite)
    page.print(paths)


def _frontiers(row: Row) -> str:
    """Which frontiers a configuration is on."""
    return " and ".join(name for name, on in (("blocks", row.on_block_frontier), ("whole", row.on_frontier)) if on)


def _median(value: Median | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else value.words(write)


def _format_psnr(psnr: Median | None) -> str:
    """The median, and the lowest in parentheses."""
    lowest = "" if psnr is None or math.isinf(psnr.low) else f" ({psnr.low:.1f})"
    return _median(psnr, format_psnr) + lowest


def _score_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.scores))
