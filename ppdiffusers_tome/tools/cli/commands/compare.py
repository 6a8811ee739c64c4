"""``ppdiffusers-tome compare``: the same pictures without and with token merging, side by side and in numbers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.demo_model import PROMPTS
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, Subject, subject_of
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration, distinct, from_files, ours
from ppdiffusers_tome.tools.generation.class_labels import select_prompts
from ppdiffusers_tome.tools.generation.settings import Settings, check_prompts, parse_settings, parse_tome_config

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline

HELP = "Draw the same pictures without and with token merging; compare speed, memory and similarity."
EXAMPLES = """writes compare.png (a sheet of all pictures), compare.md and compare.json (the table); with a ControlNet
they are called compare-controlnet.*. With '--controlnet bundled' and no picture, the edges are those of the
photograph that a prompt names: a cat, coins, ... (see docs/en/results/bundled-model.md).

examples:
  ppdiffusers-tome compare
  ppdiffusers-tome compare --ratios 0.5 --steps 5 --prompt "a photo of a motorcycle"
  ppdiffusers-tome compare --controlnet bundled
  ppdiffusers-tome compare --ratios 0.5 --configs quality balanced fast
"""

RATIOS = (0.25, 0.5, 0.7)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    tome = add_tome_arguments(parser)
    tome.add_argument("--ratios", type=float, nargs="*", metavar="X",
                      help=f"shares of the tokens to merge (default: {' '.join(map(str, RATIOS))}, without --configs)")
    tome.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                      help="settings to compare as well, each a column: JSON files, or presets")
    add_controlnet_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, 0.0, provides_edges=args.controlnet is not None)
    configurations = _configurations(args)
    prompts = check_prompts(select_prompts(settings.model.labels, args.prompt, PROMPTS))
    if settings.controlnet is not None and settings.edges is None:
        _subjects(prompts)
    from ppdiffusers_tome.tools.files import prepare_folder

    stem = "compare" if settings.controlnet is None else "compare-controlnet"
    paths = prepare_folder(args.output, [f"{stem}.{end}" for end in ("png", "md", "json")], overwrite=args.overwrite)
    from ppdiffusers_tome.tools.cli.console.output import quiet_libraries

    with quiet_libraries():
        _compare(settings, prompts, configurations, paths, default=args.prompt is None, overwrite=args.overwrite)


def _configurations(args: argparse.Namespace) -> list[Configuration]:
    """The columns: the unmerged pipeline, and the others as they were given, each a family of its own."""
    ratios = args.ratios if args.ratios is not None else [] if args.configs else RATIOS
    columns = [ours(parse_tome_config(args, ratio), f"ratio {ratio:g}") for ratio in ratios if ratio != 0]
    columns += from_files(args.configs)
    if not columns:
        raise UserError("--ratios 0 leaves nothing to compare with the unmerged pictures; add another, such as 0.5")
    return distinct(replace(column, family=column.name) for column in columns)


def _compare(
    settings: Settings, prompts: list[str], configurations: list[Configuration], paths: list[Path], *,
    default: bool, overwrite: bool,
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.evaluate.comparison import draw_all, sheet
    from ppdiffusers_tome.tools.evaluate.summary import notes, rows, write_table
    from ppdiffusers_tome.tools.generation.device import get_device_name
    from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts
    from ppdiffusers_tome.tools.images import write_image
    from ppdiffusers_tome.tools.measure.memory import explain_peak

    loaded, prompts = load_for_prompts(settings, prompts, default=default)
    edges = _edges(loaded, prompts)
    samples = draw_all(loaded, prompts, configurations, edges)
    found = rows(configurations, samples, samples[UNMERGED])
    tomes = {each.name: None if each.tome is None else each.tome.to_dict() for each in configurations}
    described, memory = loaded.describe_run(), explain_peak()
    if settings.controlnet is not None and settings.edges is None:
        described["controlnet"]["edges"] = {"photographs": [subject.name for subject in _subjects(prompts)]}
    run = {**described, "seed": settings.seed, "tome": tomes, "memory": memory}
    lines = notes(run, {"device": get_device_name(), **described["versions"], "memory": memory}, found)
    title = "Token merging" if settings.controlnet is None else "Token merging with a ControlNet"
    write_image(paths[0], sheet(title, (lines[0], lines[2]), edges, found), run, overwrite=overwrite)
    write_table(paths, title, lines, found, {"run": run}, overwrite=overwrite)


def _edges(loaded: LoadedPipeline, prompts: list[str]) -> list[Image.Image] | None:
    """The edges for each prompt: those that were given, or of the photograph that it names."""
    from ppdiffusers_tome.tools.generation.edges import compute_photograph_edges

    if loaded.settings.controlnet is None:
        return None
    if loaded.settings.edges is None:
        return [compute_photograph_edges(subject, loaded.height, loaded.width) for subject in _subjects(prompts)]
    return [loaded.load_edges(loaded.settings.edges)] * len(prompts)


def _subjects(prompts: list[str]) -> list[Subject]:
    """The photographs that prompts name, for their edges.

    Raises:
        UserError: one names none.
    """
    found = [(prompt, subject_of(prompt)) for prompt in prompts]
    for prompt, subject in found:
        if subject is None:
            raise UserError(
                f"--controlnet without a picture takes the edges of a photograph that the prompt names, and "
                f"{prompt[:40]!r} names none; give the picture by --image, or its edges by --control-image, or name "
                f"one of {', '.join(each.words for each in SUBJECTS)}"
            )
    return [subject for _, subject in found if subject is not None]
