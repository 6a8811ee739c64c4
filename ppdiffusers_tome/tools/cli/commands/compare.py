"""``ppdiffusers-tome compare``: images without and with token merging, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.demo_model import PROMPTS
from ppdiffusers_tome.tools.evaluate.configurations import (
    Configuration,
    add_fewer_steps_argument,
    check_names,
    make_fewer_steps,
    ours,
    read_settings_files,
)
from ppdiffusers_tome.tools.generation.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.generation.settings import Settings, check_prompts, parse_settings, parse_tome_config

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.evaluate.samples import ImageFolder
    from ppdiffusers_tome.tools.evaluate.summary import Row

HELP = "Generate the same images without and with token merging; compare speed, memory and similarity."
EXAMPLES = """writes compare.png (a sheet of all images), compare.md and compare.json (the table), the images in
compare/, and compare.jsonl image by image: stopped, the same command resumes. With a ControlNet they are called
compare-controlnet.*.

examples:
  ppdiffusers-tome compare
  ppdiffusers-tome compare --ratios 0.5 --steps 5 --prompt "a photo of a motorcycle"
  ppdiffusers-tome compare --image photo.png --prompt "a photo of a motorcycle"
  ppdiffusers-tome compare --ratios 0.5 --configs quality balanced fast --fewer-steps 8 6
"""
RATIOS = (0.25, 0.5, 0.7)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    tome = add_tome_arguments(parser)
    tome.add_argument("--ratios", type=float, nargs="*", metavar="X",
                      help="fractions of the tokens to merge "
                      f"(default: {' '.join(map(str, RATIOS))}, without --configs)")
    tome.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                      help="settings to compare as well, each a column: JSON files, or presets")
    add_fewer_steps_argument(tome)
    add_controlnet_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, 0.0)
    ratios = args.ratios if args.ratios is not None else [] if args.configs else RATIOS
    columns = [ours(parse_tome_config(args, ratio), f"ratio {ratio:g}") for ratio in ratios if ratio != 0]
    columns += read_settings_files(args.configs)
    columns += make_fewer_steps(args.fewer_steps, settings.steps)
    if not columns:
        raise UserError("--ratios 0 leaves nothing to compare with the unmerged images; add another, such as 0.5")
    configurations = check_names(replace(column, family=column.name) for column in columns)
    prompts = check_prompts(args.prompt, PROMPTS)
    from ppdiffusers_tome.tools.evaluate.samples import ImageFolder
    from ppdiffusers_tome.tools.files import prepare_folder

    stem = "compare" if settings.controlnet is None else "compare-controlnet"
    # The JSON is written last, so without it what exists is of a run that was stopped.
    is_stopped = (args.output / f"{stem}.jsonl").is_file() and not (args.output / f"{stem}.json").is_file()
    overwrite = args.overwrite or is_stopped
    paths = prepare_folder(args.output, [f"{stem}.{end}" for end in ("png", "md", "json")], overwrite=overwrite)
    from ppdiffusers_tome.tools.console.output import quiet_libraries

    with quiet_libraries():
        _compare(settings, prompts, configurations, ImageFolder(args.output / stem, keeps_all=True), paths,
                 default=args.prompt is None, overwrite=args.overwrite)  # fmt: skip


def _compare(
    settings: Settings, prompts: list[str], configurations: Sequence[Configuration], images: ImageFolder,
    paths: Sequence[Path], *, default: bool, overwrite: bool,
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.evaluate.runner import Evaluation
    from ppdiffusers_tome.tools.evaluate.samples import Case
    from ppdiffusers_tome.tools.evaluate.summary import describe_rows, make_rows, write_results
    from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts
    from ppdiffusers_tome.tools.images import write_image

    loaded, prompts = load_for_prompts(settings, prompts, default=default)
    edges = None if settings.edges is None else loaded.load_edges(settings.edges)
    cases = [Case(prompt, settings.seed + number) for number, prompt in enumerate(prompts)]
    ledger_path = images.path.with_suffix(".jsonl")
    images.prepare(configurations, cases, overwrite=overwrite or ledger_path.is_file())
    evaluation = Evaluation(loaded, configurations, images, times_blocks=False, edges=edges)
    results = evaluation.run(cases, ledger_path, overwrite=overwrite)
    rows = make_rows(configurations, results.samples)
    run = {**results.run, "seed": settings.seed}
    title = "Token merging" if settings.controlnet is None else "Token merging with a ControlNet"
    notes = describe_rows(run, results.machine, rows)
    made_with = {"run": run, "on": results.machine}
    write_image(paths[0], _make_sheet(title, notes, edges, rows, images), made_with, overwrite=True)
    write_results(paths, title, notes, rows, made_with, overwrite=True)


def _make_sheet(
    title: str, notes: Sequence[str], edges: Image.Image | None, rows: Sequence[Row], images: ImageFolder
) -> Image.Image:
    """Lay out a row per prompt and a column per configuration."""
    from ppdiffusers_tome.tools.evaluate.summary import PSNR, SECONDS, SPEED_UP
    from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
    from ppdiffusers_tome.tools.measure.similarity import format_psnr
    from ppdiffusers_tome.tools.measure.units import format_bytes

    columns = [] if edges is None else [Label("edges")]
    for row in rows:
        lines = [f"{row.medians[SECONDS].median:.2f} s", f"{format_bytes(row.peaks['denoising_peak_bytes'])} denoising"]
        if PSNR in row.medians:
            psnr = format_psnr(row.psnr)
            lines[0] += f" · {row.medians[SPEED_UP].median:.2f}x the speed"
            lines[1] += f" · {psnr if psnr == 'identical' else f'PSNR {psnr} dB'}"
        columns.append(Label(row.configuration.name, tuple(lines)))
    sheet_rows = []
    for number, case in enumerate(sample.case for sample in rows[0].samples):
        cells = [] if edges is None else [Cell(edges)]
        for row in rows:
            sample = row.samples[number]
            caption = " · ".join(filter(None, [f"{sample.seconds:.2f} s", str(sample.similarity or "")]))
            cells.append(Cell(images.open(row.configuration.name, case), caption))
        sheet_rows.append((case.prompt, cells))
    return make_sheet(Label(title, (notes[0], notes[2])), columns, sheet_rows)
