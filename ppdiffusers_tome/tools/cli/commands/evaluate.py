"""``ppdiffusers-tome evaluate``: cases by configurations, in seconds, memory and similarity; a stopped run resumes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import ToMeValueError, UserError
from ppdiffusers_tome.tools.evaluate.configurations import (
    Configuration,
    add_fewer_steps_argument,
    check_names,
    make_fewer_steps,
    ours,
    port,
    read_settings_files,
    read_suite,
)
from ppdiffusers_tome.tools.generation.arguments import add_image_arguments, add_output_arguments, add_tome_arguments
from ppdiffusers_tome.tools.generation.settings import (
    Settings,
    check_prompts,
    check_seed,
    get_tome_overrides,
    parse_settings,
)
from ppdiffusers_tome.tools.text_files import read_text

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder

HELP = "Generate many prompts with many settings; measure speed, memory and similarity, and plot them."
EXAMPLES = """writes evaluate.md, evaluate.json and evaluate.png (similarity against speed-up), the unmerged images in
references/, and evaluate.jsonl image by image: stopped, the same command resumes where it was, and one with more
prompts, seeds or configurations adds to the results.

a suite is a file with one configuration per line; besides the settings it may name a family, a line of the plot:
  {"name": "port 0.5", "contender": "port", "ratio": 0.5}
  {"name": "tiles 0.5", "family": "tiles", "ratio": 0.5, "tile": 16}

examples:
  ppdiffusers-tome evaluate --ratios 0.3 0.5 0.7 --port-ratios 0.3 0.5 0.7 --seeds 0 1
  ppdiffusers-tome evaluate --configs quality balanced fast --fewer-steps 8 6
  ppdiffusers-tome evaluate --model runwayml/stable-diffusion-v1-5 --dtype float16 --prompts prompts.txt --seeds 0 1 \\
      --ratios 0.3 0.5 --save-images
"""
RATIOS = (0.25, 0.5, 0.7)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser, several_seeds=True)
    group = parser.add_argument_group("what is compared with the unmerged pipeline")
    group.add_argument("--prompts", type=Path, metavar="FILE",
                       help="one prompt per line (default: all of bundled models)")
    group.add_argument("--ratios", type=float, nargs="*", metavar="X",
                       help=f"fractions to merge (default: {' '.join(map(str, RATIOS))})")
    group.add_argument("--port-ratios", type=float, nargs="+", default=[], metavar="X",
                       help="the same for ppdiffusers' own port of tomesd")
    group.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                       help="presets, or JSON files of settings")
    group.add_argument("--suite", type=Path, nargs="+", default=[], metavar="FILE",
                       help="files with one configuration per line, see below")
    add_fewer_steps_argument(group)
    add_tome_arguments(parser)
    add_output_arguments(parser)
    parser.add_argument("--save-images", action="store_true", help="keep all images, not the unmerged ones alone")
    # Text to image alone; the seed of an image is one of --seeds.
    parser.set_defaults(
        seed=0, controlnet=None, image=None, control_image=None, canny_low=100, canny_high=200, controlnet_scale=1.0
    )


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, 0.0)  # each configuration has its own
    configurations = _parse_configurations(args, settings.steps)
    for seed in args.seeds:
        check_seed("--seeds", seed)
    from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder
    from ppdiffusers_tome.tools.files import prepare_folder

    cases = [Case(prompt, seed) for prompt in _parse_prompts(args, settings) for seed in dict.fromkeys(args.seeds)]
    images = ImageFolder(args.output, args.save_images)
    # The other files are made from the ledger, so they may be replaced where it is ours.
    overwrite = args.overwrite or (args.output / "evaluate.jsonl").is_file()
    paths = prepare_folder(args.output, [f"evaluate.{end}" for end in ("png", "md", "json")], overwrite=overwrite)
    images.prepare(configurations, cases, overwrite=overwrite)
    from ppdiffusers_tome.tools.console.output import quiet_libraries

    with quiet_libraries():
        _evaluate(settings, configurations, cases, images, paths, overwrite=args.overwrite)


def _parse_configurations(args: argparse.Namespace, steps: int) -> list[Configuration]:
    """Return the unmerged pipeline and all that is compared with it."""
    ratios = args.ratios
    if ratios is None:
        ratios = [] if args.port_ratios or args.configs or args.suite else RATIOS
    compared = [ours(parse_settings(args, ratio).tome) for ratio in ratios]
    compared += [port(ratio, get_tome_overrides(args).get("max_downsample")) for ratio in args.port_ratios]
    compared += read_settings_files(args.configs)
    compared += [each for path in args.suite for each in read_suite(path)]
    return check_names([*compared, *make_fewer_steps(args.fewer_steps, steps)])


def _parse_prompts(args: argparse.Namespace, settings: Settings) -> list[str]:
    """Return every prompt once; without any, those of all subjects of a bundled model."""
    prompts = list(args.prompt or [])
    if args.prompts is not None:
        try:
            lines = [line.strip() for line in read_text(args.prompts).split("\n")]
        except ToMeValueError as error:
            raise UserError(f"--prompts {error}; give a text file with one prompt per line") from error
        if not any(lines):
            raise UserError(f"--prompts {args.prompts} holds no prompt; write one per line")
        prompts += filter(None, lines)
    if not prompts and settings.model.bundled:
        from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, prompt_of

        prompts = [prompt_of(subject) for subject in SUBJECTS]
    return check_prompts(list(dict.fromkeys(prompts)))


def _evaluate(
    settings: Settings, configurations: Sequence[Configuration], cases: Sequence[Case], images: ImageFolder,
    paths: Sequence[Path], *, overwrite: bool,
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.evaluate.plot import plot_rows
    from ppdiffusers_tome.tools.evaluate.runner import Evaluation
    from ppdiffusers_tome.tools.evaluate.summary import describe_rows, make_rows, write_results
    from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts
    from ppdiffusers_tome.tools.images import write_image

    prompts = list(dict.fromkeys(case.prompt for case in cases))
    loaded, _ = load_for_prompts(settings, prompts)
    evaluation = Evaluation(loaded, configurations, images, times_blocks=True)
    results = evaluation.run(cases, images.path / "evaluate.jsonl", overwrite=overwrite)
    title = "Fidelity and speed of token merging"
    run = {**results.run, "prompts": prompts, "seeds": list(dict.fromkeys(case.seed for case in cases))}
    rows = make_rows(configurations, results.samples, results.levels)
    notes = describe_rows(run, results.machine, rows, results.levels)
    made_with = {"run": run, "on": results.machine}
    # Existing files were refused before any work.
    write_image(paths[0], plot_rows(title, f"{notes[0]}; {notes[1]}", rows), made_with, overwrite=True)
    write_results(paths, title, notes, rows, {**made_with, "levels": results.levels}, overwrite=True)
