"""``ppdiffusers-tome evaluate``: cases by configurations, in seconds, memory and similarity."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.prompts_file import read_entries
from ppdiffusers_tome.tools.console.output import quiet_libraries
from ppdiffusers_tome.tools.evaluate.configurations import Configuration, add_compared_arguments, parse_compared
from ppdiffusers_tome.tools.evaluate.runner import Evaluation
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder
from ppdiffusers_tome.tools.generation.arguments import add_image_arguments, add_output_arguments, add_tome_arguments
from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts
from ppdiffusers_tome.tools.generation.settings import Settings, check_prompts, check_seed, parse_settings
from ppdiffusers_tome.tools.measure.ledger import prepare_results

HELP = "Generate many prompts with many settings; measure speed, memory and similarity, and plot them."
EXAMPLES = """writes evaluate.md, evaluate.json and evaluate.png (similarity against speed-up), the unmerged images in
references/, and evaluate.jsonl prompt by prompt: stopped, the same command resumes, and one with more prompts or seeds
adds to the results.

  ppdiffusers-tome evaluate --ratios 0.3 0.5 0.7 --seeds 0 1
  ppdiffusers-tome evaluate --configs quality balanced fast --fewer-steps 8 6
  ppdiffusers-tome evaluate --model runwayml/stable-diffusion-v1-5 --dtype float16 --prompts prompts.txt --seeds 0 1 \\
      --ratios 0.3 0.5 --save-images
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser, several_seeds=True)
    parser.add_argument("--prompts", type=Path, metavar="FILE",
                        help="one prompt per line, or a table (default: all that a small model knows)")
    add_compared_arguments(parser)
    add_tome_arguments(parser)
    add_output_arguments(parser)
    parser.add_argument("--save-images", action="store_true", help="keep all images, not the unmerged ones alone")
    # Text to image alone; the seed of an image is one of --seeds.
    parser.set_defaults(
        seed=0, controlnet=None, image=None, control_image=None, canny_low=100, canny_high=200, controlnet_scale=1.0
    )


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, 0.0)  # each configuration has its own
    evaluate(args, settings, parse_compared(args, settings.steps))


def evaluate(args: argparse.Namespace, settings: Settings, configurations: Sequence[Configuration]) -> None:
    """Generate all prompts with all configurations, and write the results."""
    for seed in args.seeds:
        check_seed("--seeds", seed)
    prompts = _parse_prompts(args, settings)
    paths = prepare_results(args, "evaluate", "evaluate.png")
    with quiet_libraries():
        from ppdiffusers_tome.tools.evaluate.plot import plot_report

        cases = [Case(prompt, seed) for prompt in prompts for seed in dict.fromkeys(args.seeds)]
        loaded, _ = load_for_prompts(settings, prompts)
        evaluation = Evaluation(loaded, configurations, ImageFolder(args.output, args.save_images))
        title, ledger_path = "Fidelity and speed of token merging", args.output / "evaluate.jsonl"
        report = evaluation.run(title, cases, ledger_path, overwrite=args.overwrite)
        report.write(paths, plot_report(report))


def _parse_prompts(args: argparse.Namespace, settings: Settings) -> list[str]:
    """Return every prompt once; by default all that a small model knows."""
    prompts = list(args.prompt or [])
    if args.prompts is not None:
        for line, values in read_entries(args.prompts, may_have_any_name=True):
            if isinstance(values, UserError) or values.keys() != {"prompt"}:
                fault = values if isinstance(values, UserError) else "it has more, or less, than a prompt"
                raise UserError(f"--prompts {args.prompts}, line {line}: {fault}")
            prompts.append(values["prompt"])
        if not prompts:
            raise UserError(f"--prompts {args.prompts} holds no prompt; write one per line")
    return check_prompts(list(dict.fromkeys(prompts or settings.model.prompts)))
