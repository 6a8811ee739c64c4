"""The results of an evaluation or a comparison, as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.console.tables import Page, Table
from ppdiffusers_tome.tools.evaluate import differences
from ppdiffusers_tome.tools.evaluate.configurations import Configuration
from ppdiffusers_tome.tools.evaluate.frontier import find_frontier
from ppdiffusers_tome.tools.evaluate.samples import Sample
from ppdiffusers_tome.tools.files import write_json, write_text
from ppdiffusers_tome.tools.generation.results import format_run
from ppdiffusers_tome.tools.measure.memory import highest_peak
from ppdiffusers_tome.tools.measure.similarity import FLIP_PPD, format_psnr
from ppdiffusers_tome.tools.measure.stats import METHOD, Median
from ppdiffusers_tome.tools.measure.units import counted, format_bytes, format_seconds

SECONDS, SPEED_UP, PSNR, SSIM, FLIP = "seconds", "speed_up", "psnr_db", "ssim", "flip"
BLOCK_SECONDS, BLOCK_SPEED_UP = "block_seconds", "block_speed_up"


@dataclass(frozen=True)
class Row:
    """The images of one configuration.

    Attributes:
        configuration: generated them.
        samples: of each image.
        values: of each image, by measure; the unmerged images have no similarity, and blocks may not be timed.
        medians: of the values, by measure.
        on_frontier, on_block_frontier: True if no other configuration has as much PSNR and as much speed-up (of the
            whole call, of the blocks) and more of one.
    """

    configuration: Configuration
    samples: Sequence[Sample]
    values: Mapping[str, Sequence[float]]
    medians: Mapping[str, Median]
    on_frontier: bool = False
    on_block_frontier: bool = False

    @property
    def psnr(self) -> float:
        """The median PSNR in dB; infinite for the unmerged images themselves."""
        return self.medians[PSNR].median if PSNR in self.medians else math.inf

    @property
    def peaks(self) -> dict[str, int | None]:
        """The highest peaks of memory in bytes; None if not measured."""
        return {
            "denoising_peak_bytes": highest_peak(sample.denoising_peak_bytes for sample in self.samples),
            "peak_bytes": highest_peak(sample.peak_bytes for sample in self.samples),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        names = (SECONDS, SPEED_UP, BLOCK_SECONDS, BLOCK_SPEED_UP, PSNR, SSIM, FLIP)
        medians = {name: self.medians[name].to_dict() if name in self.medians else None for name in names}
        return {
            "configuration": self.configuration.to_dict(), **medians, **self.peaks,
            "on_frontier": self.on_frontier, "on_block_frontier": self.on_block_frontier,
            "samples": [asdict(sample) for sample in self.samples],
        }  # fmt: skip


def make_rows(
    configurations: Sequence[Configuration], samples: Mapping[str, Sequence[Sample]], levels: Sequence[int] = ()
) -> list[Row]:
    """Summarize samples by configuration, family by family.

    Args:
        configurations: those of the table.
        samples: of each, by name.
        levels: of the blocks that count; none if blocks do not matter.
    """
    families = list(dict.fromkeys(each.family for each in configurations))
    rows = []
    for configuration in sorted(configurations, key=lambda each: families.index(each.family)):
        values = _collect_values(samples[configuration.name], levels)
        medians = {measure: Median.from_values(of_measure) for measure, of_measure in values.items()}
        rows.append(Row(configuration, samples[configuration.name], values, medians))
    whole = find_frontier([(row.medians[SPEED_UP].median, row.psnr) for row in rows])
    blocks = find_frontier([(row.medians[BLOCK_SPEED_UP].median, row.psnr) for row in rows]) if levels else whole
    return [
        replace(row, on_frontier=is_best, on_block_frontier=bool(levels) and is_best_in_blocks)
        for row, is_best, is_best_in_blocks in zip(rows, whole, blocks, strict=True)
    ]


def _collect_values(samples: Sequence[Sample], levels: Sequence[int]) -> dict[str, list[float]]:
    values = {
        SECONDS: [sample.seconds for sample in samples],
        SPEED_UP: [sample.unmerged_seconds / sample.seconds for sample in samples],
    }
    if levels:
        values[BLOCK_SECONDS] = [sum(sample.block_seconds[str(level)] for level in levels) for sample in samples]
        unmerged = [sum(sample.unmerged_block_seconds[str(level)] for level in levels) for sample in samples]
        values[BLOCK_SPEED_UP] = [slow / fast for slow, fast in zip(unmerged, values[BLOCK_SECONDS], strict=True)]
    similarities = [sample.similarity for sample in samples if sample.similarity is not None]
    if similarities:
        values[PSNR] = [similarity.psnr for similarity in similarities]
        values[SSIM] = [similarity.ssim for similarity in similarities]
        values[FLIP] = [similarity.flip for similarity in similarities]
    return values


def describe_rows(
    run: Mapping[str, Any], machine: Mapping[str, Any], rows: Sequence[Row], levels: Sequence[int] = ()
) -> list[str]:
    """Return the notes above the table; the first two describe the images."""
    cases = [sample.case for sample in rows[0].samples]
    prompts, seeds = {case.prompt for case in cases}, dict.fromkeys(case.seed for case in cases)
    notes = [
        format_run(run),
        f"images of each configuration: {len(cases)}, from {counted(len(prompts), 'prompt')} and "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        ", ".join(f"{name} {value}" for name, value in machine.items() if name != "memory"),
        "seconds: the whole call of the pipeline, decoding included, after a warm-up; medians over the images",
        "speed-up: seconds of the unmerged image / those of the merged image, same prompt and seed in the same run; "
        "medians",
        f"peak memory: {machine['memory']}, the most over the images; until the last denoising step, and with decoding",
        "PSNR (median, and the lowest in parentheses) and SSIM (median): to the unmerged image from the same noise",
        f"FLIP (median): the difference to the eye, 0 to 1, less is better; LDR-FLIP at {FLIP_PPD} pixels per degree",
    ]
    if levels:
        notes += [
            f"seconds in blocks: inside the transformer blocks at level {' and '.join(map(str, levels))}, where tokens "
            "merge, with matching, merging and unmerging",
            "frontier: no other configuration has as much PSNR and as much speed-up (of the blocks, of the whole) and "
            "more of at least one",
        ]
    if any(row.configuration.steps is not None for row in rows):
        notes.append("N steps: the unmerged pipeline with fewer denoising steps, the other way to save the same time")
    return notes


def make_table(rows: Sequence[Row]) -> Table:
    """Make a table with one row per configuration and a column for each measure."""
    has_blocks = any(BLOCK_SECONDS in row.medians for row in rows)
    columns: dict[str, Callable[[Row], str]] = {"configuration": lambda row: row.configuration.name}
    if has_blocks:
        columns["frontier"] = _name_frontiers
        columns["seconds in blocks"] = lambda row: _format(row, BLOCK_SECONDS, format_seconds)
        columns["speed-up of blocks"] = lambda row: _format(row, BLOCK_SPEED_UP, "{:.2f}x".format)
    columns |= {
        "seconds": lambda row: _format(row, SECONDS, format_seconds),
        "speed-up": lambda row: _format(row, SPEED_UP, "{:.2f}x".format),
        "peak memory, denoising": lambda row: format_bytes(row.peaks["denoising_peak_bytes"]),
        "peak memory, all": lambda row: format_bytes(row.peaks["peak_bytes"]),
        "PSNR (dB)": _format_psnr,
        "SSIM": lambda row: _format(row, SSIM, "{:.3f}".format),
        "FLIP": lambda row: _format(row, FLIP, "{:.3f}".format),
    }
    return Table(list(columns), [[format_cell(row) for format_cell in columns.values()] for row in rows],
                 left=1 + has_blocks)  # fmt: skip


def write_results(
    paths: Sequence[Path], title: str, notes: Sequence[str], rows: Sequence[Row], more: Mapping[str, Any], *,
    overwrite: bool,
) -> None:  # fmt: skip
    """Write the tables as Markdown and JSON, and print them.

    Args:
        paths: of the image, which exists, the Markdown and the JSON.
        title, notes: above the tables.
        rows: of the table.
        more: other values of the JSON.
        overwrite: whether files may be replaced.

    Raises:
        UserError: a file exists and must not be replaced, or cannot be written.
    """
    tables = [make_table(rows)]
    if len(rows) > 2 and rows[0].medians[SECONDS].interval is not None:
        tables.append(differences.make_table(rows))
    page = Page(title, [*notes, *differences.describe(len(rows[0].samples))], tables)
    write_text(paths[1], page.markdown(), overwrite=overwrite)
    content = {**more, "intervals": METHOD, "configurations": [row.to_dict() for row in rows]}
    write_json(paths[2], content, overwrite=overwrite)
    page.print(paths)


def _name_frontiers(row: Row) -> str:
    return " and ".join(name for name, on in (("blocks", row.on_block_frontier), ("whole", row.on_frontier)) if on)


def _format(row: Row, measure: str, format_value: Callable[[float], str]) -> str:
    return row.medians[measure].format(format_value) if measure in row.medians else "-"


def _format_psnr(row: Row) -> str:
    """Return the median, and the lowest in parentheses."""
    lowest = row.medians[PSNR].low if PSNR in row.medians else math.inf
    return _format(row, PSNR, format_psnr) + (f" ({lowest:.1f})" if math.isfinite(lowest) else "")
