"""``ppdiffusers-tome compare``: images unmerged and with settings, in seconds, memory and similarity."""

import argparse

from ppdiffusers_tome.tools.compare.configurations import Configuration, add_compared_arguments, parse_compared
from ppdiffusers_tome.tools.compare.samples import RESULTS, Case
from ppdiffusers_tome.tools.console.output import import_quietly
from ppdiffusers_tome.tools.console.tome_arguments import add_tome_arguments
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.generation.arguments import add_guide_arguments, add_image_arguments, add_output_arguments
from ppdiffusers_tome.tools.generation.checks import check_seed, parse_settings
from ppdiffusers_tome.tools.generation.prompts import parse_prompts
from ppdiffusers_tome.tools.generation.settings import ImageSettings
from ppdiffusers_tome.tools.measure.ledger import read_results

HELP = "Generate the same images unmerged and with settings; compare speed, memory and similarity."
EXAMPLES = """It writes compare.png (a sheet of the first images), compare.md and compare.json (the table), images/ (all
of them) and compare.jsonl prompt by prompt: stopped, the same command resumes, and one with more prompts or seeds adds
to the results.

  ppdiffusers-tome compare --steps 5 --prompt "a photo of a motorcycle"
  ppdiffusers-tome compare --ratios 0.5 --configs quality balanced --fewer-steps 8 6
  ppdiffusers-tome compare --model runwayml/stable-diffusion-v1-5 --scheduler ddim --prompts prompts.txt --ratios 0.5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser, file=True, seeds=True)
    add_guide_arguments(parser)
    add_compared_arguments(parser)
    add_tome_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args)
    compare(args, settings, parse_compared(args, settings.steps))


def compare(args: argparse.Namespace, settings: ImageSettings, configurations: list[Configuration]) -> None:
    """Generate all prompts with configurations, maybe a benchmark's; write the results."""
    for seed in args.seeds:
        check_seed("--seeds", seed)
    prompts = parse_prompts(args, settings.model.default_prompts)
    ledger = args.output / "compare.jsonl"  # of which the results are made, so it lets them be replaced
    paths = prepare_folder(args.output, RESULTS, overwrite=args.overwrite or ledger.is_file())
    if not args.overwrite:  # refuse others than those of earlier results before Paddle loads
        known = {name: value for name, value in settings.describe().items() if name not in settings.defaults}
        known["configurations"] = {each.name: each.to_dict() for each in configurations}
        read_results(ledger, known)
    with import_quietly():
        from ppdiffusers_tome.tools.compare.run import Comparison
        from ppdiffusers_tome.tools.generation.loading import load_for_prompts

        loaded = load_for_prompts(settings, prompts)
        cases = list(dict.fromkeys(Case(prompt, seed) for prompt in prompts for seed in args.seeds))
        report = Comparison(loaded, configurations, args.output).run(cases, overwrite=args.overwrite)
        report.write(paths, loaded.edges)
