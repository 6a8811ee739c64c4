"""``ppdiffusers-tome compare``: images without and with token merging, side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.console.output import quiet_libraries
from ppdiffusers_tome.tools.evaluate.configurations import add_compared_arguments, parse_compared
from ppdiffusers_tome.tools.evaluate.report import PSNR, SECONDS, SPEED_UP, Report
from ppdiffusers_tome.tools.evaluate.runner import Evaluation
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder
from ppdiffusers_tome.tools.generation.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts
from ppdiffusers_tome.tools.generation.settings import check_prompts, parse_settings
from ppdiffusers_tome.tools.measure.ledger import prepare_results
from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.units import format_bytes

if TYPE_CHECKING:
    from PIL import Image

HELP = "Generate the same images without and with token merging; compare speed, memory and similarity."
EXAMPLES = """writes compare.png (a sheet of all images), compare.md and compare.json (the table), the images in
compare/, and compare.jsonl prompt by prompt: stopped, the same command resumes, and one with more prompts adds to the
results. With a ControlNet they are called compare-controlnet.*.

  ppdiffusers-tome compare --ratios 0.5 --steps 5 --prompt "a photo of a motorcycle"
  ppdiffusers-tome compare --ratios 0.5 --configs quality balanced fast --fewer-steps 8 6
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    add_compared_arguments(parser)
    add_tome_arguments(parser)
    add_controlnet_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, 0.0)
    configurations = parse_compared(args, settings.steps)
    prompts = check_prompts(args.prompt, settings.model.default_prompts)
    stem = "compare" if settings.controlnet is None else "compare-controlnet"
    paths = prepare_results(args, stem, f"{stem}.png")
    with quiet_libraries():
        loaded, prompts = load_for_prompts(settings, prompts, default=args.prompt is None)
        edges = loaded.load_edges(settings.edges)
        cases = [Case(prompt, settings.seed + number) for number, prompt in enumerate(prompts)]
        images = ImageFolder(args.output / stem, keeps_all=True)
        evaluation = Evaluation(loaded, configurations, images, edges)
        title = "Token merging" if edges is None else "Token merging with a ControlNet"
        report = evaluation.run(title, cases, args.output / f"{stem}.jsonl", overwrite=args.overwrite)
        report.write(paths, _make_sheet(report, edges, images))


def _make_sheet(report: Report, edges: Image.Image | None, images: ImageFolder) -> Image.Image:
    """Lay out a row per prompt and a column per configuration."""
    from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet

    columns = [] if edges is None else [Label("edges")]
    for row in report.rows:
        lines = [f"{row.medians[SECONDS].median:.2f} s", f"{format_bytes(row.peaks['denoising_peak_bytes'])} denoising"]
        if PSNR in row.medians:
            psnr = format_psnr(row.psnr)
            lines[0] += f" · {row.medians[SPEED_UP].median:.2f}x the speed"
            lines[1] += f" · {psnr if psnr == 'identical' else f'PSNR {psnr} dB'}"
        columns.append(Label(row.configuration.name, tuple(lines)))
    sheet_rows = []
    for number, case in enumerate(sample.case for sample in report.rows[0].samples):
        cells = [] if edges is None else [Cell(edges)]
        for row in report.rows:
            sample = row.samples[number]
            caption = " · ".join(filter(None, [f"{sample.seconds:.2f} s", str(sample.similarity or "")]))
            cells.append(Cell(images.open(row.configuration.name, case), caption))
        sheet_rows.append((case.prompt, cells))
    return make_sheet(Label(report.title, (report.notes[0], report.notes[2])), columns, sheet_rows)
