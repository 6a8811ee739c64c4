"""``ppdiffusers-tome visualize``: merged tokens over the image."""

import argparse
from dataclasses import replace

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.tools.console.output import import_quietly, print_line
from ppdiffusers_tome.tools.console.tome_arguments import add_tome_arguments, parse_tome_config
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.generation.arguments import add_guide_arguments, add_image_arguments, add_output_arguments
from ppdiffusers_tome.tools.generation.checks import parse_settings
from ppdiffusers_tome.tools.generation.prompts import check_prompts
from ppdiffusers_tome.tools.images import write_image

HELP = "Generate an image and show which of its tokens merged, by step and level."
EXAMPLES = """It writes visualize.png: groups of merged tokens over the image, a row for the first, a middle and the
last step, a column for the first block of each level. Groups have their mean color and an outline; tokens that did not
merge have no outline. Methods that compare no tokens, as in all presets, make no groups.

  ppdiffusers-tome visualize --prompt "a photo of a rocket" --max-downsample 4
  ppdiffusers-tome visualize --image photo.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser, several=False)
    add_guide_arguments(parser)
    add_tome_arguments(parser, default="0.5")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    if args.compile is not None:
        raise UserError("--compile has no effect here: merging is recorded in Paddle's own layers; omit it")
    if args.ratio is None and args.config is None:
        args.ratio = 0.5  # presets make no groups
    settings = replace(parse_settings(args), tome=parse_tome_config(args))
    (prompt,) = check_prompts(args.prompt, settings.model.default_prompts[:1], most=1)
    if settings.tome.ratio == 0 or not METHODS[settings.tome.method].compares:
        raise UserError(
            f"{settings.tome.summary} makes no groups of similar tokens, so there is nothing to show; give --method "
            "tome --ratio 0.5 in its place, or see the images with ppdiffusers-tome compare"
        )
    (path,) = prepare_folder(args.output, ["visualize.png"], overwrite=args.overwrite)
    with import_quietly():
        from ppdiffusers_tome.tools.figures.groups import make_groups_sheet
        from ppdiffusers_tome.tools.generation.loading import load_for_prompts
        from ppdiffusers_tome.tools.recorder import record_merging

        loaded = load_for_prompts(settings, [prompt])
        loaded.apply(settings.tome)
        # With guidance there are two halves: the one with the prompt is the first in a DiTPipeline, else the last.
        with record_merging(loaded.pipe, image=-1 if loaded.labels is None else 0) as records:
            image = loaded.generate(prompt, settings.seed).image
        if not records:
            raise UserError("no block merged tokens into groups, so there is nothing to show; generate a larger image")
        made_with = loaded.describe_image(prompt, settings.seed)
        sheet = make_groups_sheet(image, records, loaded.count_calls(), made_with, settings.tome.summary)
        write_image(path, sheet, made_with)
        print_line(f"{loaded.describe_merging()}\n{path}")
