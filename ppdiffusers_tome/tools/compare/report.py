"""Report a comparison: a sheet of images, a table, numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.compare.configurations import Configuration
from ppdiffusers_tome.tools.compare.samples import Case, Sample
from ppdiffusers_tome.tools.console.tables import Table, write_page
from ppdiffusers_tome.tools.generation.settings import format_run
from ppdiffusers_tome.tools.images import read_image, write_image
from ppdiffusers_tome.tools.measure.meter import find_highest_peak
from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.stats import METHOD, MIN_VALUES, Median
from ppdiffusers_tome.tools.measure.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from PIL import Image

# Measures with their headings and formats.
MEASURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("seconds", format_seconds), "speedup": ("speed-up", "{:.2f}x".format),
    "psnr_db": ("PSNR (dB)", format_psnr), "ssim": ("SSIM", "{:.3f}".format),
}  # fmt: skip
PEAKS = {"denoising_peak_bytes": "peak memory, denoising", "peak_bytes": "peak memory, all"}
_MAX_ROWS = 8  # of the sheet


@dataclass(frozen=True)
class Row:
    """The images of one configuration; unmerged ones have no similarity."""

    configuration: Configuration
    samples: Sequence[Sample]

    @cached_property
    def medians(self) -> dict[str, Median]:
        """The medians over the images, by measure."""
        values = {
            "seconds": [sample.seconds for sample in self.samples],
            "speedup": [sample.unmerged_seconds / sample.seconds for sample in self.samples],
            "psnr_db": [sample.psnr_db for sample in self.samples if sample.psnr_db is not None],
            "ssim": [sample.ssim for sample in self.samples if sample.ssim is not None],
        }
        return {measure: Median.from_values(of_images) for measure, of_images in values.items() if of_images}

    @property
    def peaks(self) -> dict[str, int | None]:
        """The highest peaks of memory in bytes; None if not measured."""
        return {name: find_highest_peak(getattr(sample, name) for sample in self.samples) for name in PEAKS}

    def format(self, measure: str) -> str:
        """Return the median with its interval, and of PSNR the lowest."""
        if measure not in self.medians:
            return "-"
        median = self.medians[measure]
        lowest = f" ({median.least:.1f})" if measure == "psnr_db" and math.isfinite(median.least) else ""
        return median.format(MEASURES[measure][1]) + lowest

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        medians = {name: asdict(self.medians[name]) if name in self.medians else None for name in MEASURES}
        samples = [asdict(sample) for sample in self.samples]
        return {"configuration": self.configuration.to_dict(), **medians, **self.peaks, "samples": samples}


@dataclass(frozen=True)
class Report:
    """The results of all cases."""

    run: Mapping[str, Any]  # what all images share, and all prompts and seeds
    machine: Mapping[str, Any]
    rows: Sequence[Row]

    @property
    def notes(self) -> list[str]:
        """Sentences below the table; the first says how the images were made."""
        images, prompts, seeds = len(self.rows[0].samples), len(self.run["prompts"]), len(self.run["seeds"])
        notes = [
            format_run(self.run),
            ", ".join(f"{name} {value}" for name, value in self.machine.items() if name != "memory"),
            f"medians of {format_count(images, 'image')} each ({format_count(prompts, 'prompt')}, "
            f"{format_count(seeds, 'seed')})" + (f"; in brackets: {METHOD}" if images >= MIN_VALUES else ""),
            "seconds: of the whole call, after a warm-up; speed-up: the unmerged image's / this one's, the median",
            "PSNR (the lowest), SSIM: to the unmerged image from the same noise",
        ]
        if self.has_peaks:
            notes.append(f"peak memory: {self.machine['memory']}, the most over the images")
        return notes + self.warnings

    @property
    def warnings(self) -> list[str]:
        """A sentence where other programs took cores from the images."""
        disturbed = [sample.is_disturbed for row in self.rows for sample in row.samples]
        share = f"{sum(disturbed)} of {format_count(len(disturbed), 'image')}"
        sentence = (
            f"the machine was busy while {share} were measured, so seconds and speed-ups mislead; measure again with "
            "--overwrite when it is idle"
        )
        return [sentence] if any(disturbed) else []

    @property
    def has_peaks(self) -> bool:
        """True where memory was measured."""
        return any(peak is not None for row in self.rows for peak in row.peaks.values())

    def make_table(self) -> Table:
        """Make a table of the measures of every configuration."""
        headings = [heading for heading, _ in MEASURES.values()]
        table = Table(["configuration", *headings, *(PEAKS.values() if self.has_peaks else ())])
        for row in self.rows:
            peaks = map(format_bytes, row.peaks.values()) if self.has_peaks else ()
            table.add(row.configuration.name, *map(row.format, MEASURES), *peaks)
        return table

    def write(self, paths: Sequence[Path], edges: Image.Image | None) -> None:
        """Write sheet, table and numbers to the paths, and print the table."""
        made_with = {"run": self.run, "on": self.machine}
        sheet_path, page_path, json_path = paths
        write_image(sheet_path, self._make_sheet(sheet_path.parent, edges), made_with)
        content = {**made_with, "intervals": METHOD, "configurations": [row.to_dict() for row in self.rows]}
        write_page(page_path, json_path, "Token merging", self.notes, self.make_table(), content, other_paths=paths[:1])

    def _make_sheet(self, folder: Path, edges: Image.Image | None) -> Image.Image:
        """Lay out the first cases as rows, and the configurations as columns."""
        from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet

        columns = [] if edges is None else [Label("edges")]
        for row in self.rows:
            first = [f"{row.medians['seconds'].median:.2f} s"]
            second = [f"{format_bytes(row.peaks['denoising_peak_bytes'])} denoising"] if self.has_peaks else []
            if "psnr_db" in row.medians:
                psnr = format_psnr(row.medians["psnr_db"].median)
                first.append(f"{row.medians['speedup'].median:.2f}x the speed")
                second.append(psnr if psnr == "identical" else f"PSNR {psnr} dB")
            columns.append(Label(row.configuration.name, tuple(" · ".join(line) for line in (first, second) if line)))
        sheet_rows = []
        for samples in list(zip(*(row.samples for row in self.rows), strict=True))[:_MAX_ROWS]:
            case = Case(samples[0].prompt, samples[0].seed)
            cells = [] if edges is None else [Cell(edges)]
            for row, sample in zip(self.rows, samples, strict=True):
                caption = " · ".join(filter(None, [f"{sample.seconds:.2f} s", sample.similarity]))
                cells.append(Cell(read_image(case.locate(folder, row.configuration.name)), caption))
            sheet_rows.append((f"{case.prompt}, seed {case.seed}", cells))
        device = self.machine["device"] if self.machine["device"] != "CPU" else self.machine["processor"]
        lines = (self.notes[0], f"{device}, {self.machine['threads']} threads", *self.warnings)
        return make_sheet(Label("Token merging", lines), columns, sheet_rows)
