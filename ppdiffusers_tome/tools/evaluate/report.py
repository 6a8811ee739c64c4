"""The results of an evaluation, as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.console.tables import Page, Table
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluate.samples import Sample
from ppdiffusers_tome.tools.generation.results import format_run
from ppdiffusers_tome.tools.images import write_image
from ppdiffusers_tome.tools.measure.meter import find_highest_peak
from ppdiffusers_tome.tools.measure.similarity import FLIP_PPD, format_psnr
from ppdiffusers_tome.tools.measure.stats import METHOD, MIN_VALUES, Median, find_frontier
from ppdiffusers_tome.tools.measure.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from PIL import Image

SECONDS, SPEED_UP, PSNR, SSIM, FLIP = "seconds", "speed_up", "psnr_db", "ssim", "flip"
_Format = Callable[[float], str]
# Measures with their headings, and the formats of their values and differences.
MEASURES: Mapping[str, tuple[str, _Format, _Format | None]] = {
    SECONDS: ("seconds", format_seconds, None),
    SPEED_UP: ("speed-up", "{:.2f}x".format, "{:+.2f}x".format),
    PSNR: ("PSNR (dB)", format_psnr, "{:+.1f}".format),
    SSIM: ("SSIM", "{:.3f}".format, "{:+.3f}".format),
    FLIP: ("FLIP", "{:.3f}".format, "{:+.3f}".format),
}


@dataclass(frozen=True)
class Row:
    """The images of one configuration; unmerged ones have no similarity."""

    configuration: Configuration
    samples: Sequence[Sample]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """The values of each image, by measure."""
        values = {
            SECONDS: [sample.seconds for sample in self.samples],
            SPEED_UP: [sample.unmerged_seconds / sample.seconds for sample in self.samples],
        }
        similarities = [sample.similarity for sample in self.samples if sample.similarity is not None]
        if similarities:
            values[PSNR] = [similarity.psnr for similarity in similarities]
            values[SSIM] = [similarity.ssim for similarity in similarities]
            values[FLIP] = [similarity.flip for similarity in similarities]
        return values

    @cached_property
    def medians(self) -> dict[str, Median]:
        """The medians of the values, by measure."""
        return {measure: Median.from_values(values) for measure, values in self.values.items()}

    @property
    def psnr(self) -> float:
        """The median PSNR in dB; infinite for the unmerged images themselves."""
        return self.medians[PSNR].median if PSNR in self.medians else math.inf

    @property
    def peaks(self) -> dict[str, int | None]:
        """The highest peaks of memory in bytes; None if not measured."""
        return {
            "denoising_peak_bytes": find_highest_peak(sample.denoising_peak_bytes for sample in self.samples),
            "peak_bytes": find_highest_peak(sample.peak_bytes for sample in self.samples),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        medians = {name: self.medians[name].to_dict() if name in self.medians else None for name in MEASURES}
        samples = [asdict(sample) for sample in self.samples]
        return {"configuration": self.configuration.to_dict(), **medians, **self.peaks, "samples": samples}


@dataclass(frozen=True)
class Report:
    """The results of all cases."""

    title: str
    run: Mapping[str, Any]  # what all images share, and all prompts and seeds
    machine: Mapping[str, Any]
    rows: Sequence[Row]  # family by family
    busy: str | None = None  # what else ran as the measuring began, if that disturbs it

    @property
    def notes(self) -> list[str]:
        """The notes above the table; the first two describe the images."""
        num_images, seeds = len(self.rows[0].samples), self.run["seeds"]
        notes = [
            format_run(self.run),
            f"images of each configuration: {num_images}, from {format_count(len(self.run['prompts']), 'prompt')} and "
            f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
            ", ".join(f"{name} {value}" for name, value in self.machine.items() if name != "memory"),
            "seconds: the whole call of the pipeline, decoding included, after a warm-up; medians over the images",
            "speed-up: seconds of the unmerged image / those of the merged image, same prompt and seed in the same "
            "run; medians",
            f"peak memory: {self.machine['memory']}, the most over the images; until the last denoising step, and with "
            "decoding",
            "PSNR (median, and the lowest in parentheses) and SSIM (median): to the unmerged image from the same noise",
            f"FLIP (median): the difference to the eye, 0 to 1, less is better; LDR-FLIP at {FLIP_PPD} pixels per "
            "degree",
            "frontier: no other configuration has as much PSNR and as much speed-up, and more of at least one",
        ]
        if self.busy:
            notes.append(f"{self.busy}: seconds and speed-ups mislead; measure again when it is idle")
        if any(row.configuration.steps is not None for row in self.rows):
            notes.append("N steps: the unmerged pipeline with fewer denoising steps, the other way to save the time")
        if num_images < MIN_VALUES:
            return [
                *notes, f"no difference is significant with {format_count(num_images, 'image')}: a median has an "
                f"interval from {MIN_VALUES} images on; add prompts or seeds",
            ]  # fmt: skip
        return [
            *notes, f"in brackets: {METHOD}; none where both ends are written the same",
            "differences: of the first settings less the second, image by image from the same prompt and seed; "
            "significant where the interval excludes 0, and ~ marks differences that are not significant",
        ]  # fmt: skip

    def write(self, paths: Sequence[Path], figure: Image.Image) -> None:
        """Write figure, tables and numbers, and print the tables.

        Raises:
            UserError: a file cannot be written.
        """
        tables = [make_table(self.rows)]
        if len(self.rows) > 2 and len(self.rows[0].samples) >= MIN_VALUES:
            tables.append(make_differences(self.rows))
        made_with = {"run": self.run, "on": self.machine}
        write_image(paths[0], figure, made_with, overwrite=True)
        content = {**made_with, "intervals": METHOD, "configurations": [row.to_dict() for row in self.rows]}
        Page(self.title, self.notes, tables).write(paths, content)


def mark_frontier(rows: Sequence[Row]) -> list[bool]:
    """Return True for each row on the frontier of PSNR and speed-up."""
    return find_frontier([(row.medians[SPEED_UP].median, row.psnr) for row in rows])


def make_table(rows: Sequence[Row]) -> Table:
    """Make a table of the measures of every configuration."""
    measures = [name for name in MEASURES if any(name in row.medians for row in rows)]
    headings = ["configuration", "frontier", *(MEASURES[name][0] for name in measures)]
    table = Table([*headings, "peak memory, denoising", "peak memory, all"], left=2)
    for row, is_best in zip(rows, mark_frontier(rows), strict=True):
        cells = [_format(row, name) for name in measures]
        table.add(row.configuration.name, "yes" if is_best else "", *cells, *map(format_bytes, row.peaks.values()))
    return table


def make_differences(rows: Sequence[Row]) -> Table:
    """Make a table with one row per two merged configurations.

    Medians whose intervals overlap may well differ, as both vary with the images. The difference on the same image, of
    the same prompt and noise, varies far less.
    """
    merged = [row for row in rows if row.configuration.name != UNMERGED]
    formats = {
        name: (heading, form) for name, (heading, _, form) in MEASURES.items() if form and name in rows[-1].values
    }
    table = Table(["differences", "less", *(heading for heading, _ in formats.values())], left=2)
    for first, second in combinations(merged, 2):
        cells = [
            _format_difference(subtract(first.values[name], second.values[name]), form)
            for name, (_, form) in formats.items()
        ]
        table.add(first.configuration.name, second.configuration.name, *cells)
    return table


def subtract(first: Sequence[float], second: Sequence[float]) -> Median:
    """Return the median difference; two infinite PSNRs do not differ."""
    return Median.from_values([0.0 if a == b else a - b for a, b in zip(first, second, strict=True)])


def _format(row: Row, measure: str) -> str:
    """Return the median, of PSNR with the lowest in parentheses."""
    if measure not in row.medians:
        return "-"
    median = row.medians[measure]
    lowest = f" ({median.low:.1f})" if measure == PSNR and math.isfinite(median.low) else ""
    return median.format(MEASURES[measure][1]) + lowest


def _format_difference(difference: Median, format_value: _Format) -> str:
    """Return ``+3.1 [2.2, 4.0]``; one that is not significant has ``~``."""
    ends = difference.interval
    is_significant = ends is not None and not ends[0] <= 0 <= ends[1]
    return ("" if is_significant else "~") + difference.format(format_value)
