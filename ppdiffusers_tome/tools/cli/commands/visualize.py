"""``ppdiffusers-tome visualize``: merged tokens over the image."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.files import prepare_folder, write_json
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.tools.console.output import print_line, quiet_libraries
from ppdiffusers_tome.tools.generation.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline, load_for_prompts
from ppdiffusers_tome.tools.generation.settings import check_prompts, parse_settings
from ppdiffusers_tome.tools.images import write_image

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.recorder import MergingBlock

HELP = "Generate an image and show which of its tokens merged, by step and level."
EXAMPLES = """writes visualize.png (groups of merged tokens over the image: one row per step, one column per block) and
visualize.json (groups in numbers). Groups have their mean color and an outline; tokens that did not merge have no
outline. Methods that compare no tokens, as in all presets, make no groups.

  ppdiffusers-tome visualize --prompt "a photo of a rocket" --max-downsample 4 --at 1 5 10
  ppdiffusers-tome visualize --image photo.png --blocks up_blocks
"""
ALL = "all"
_NUM_CALLS = 3  # rows without --at


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    add_tome_arguments(parser, ratio=True)
    group = parser.add_argument_group("rows and columns")
    group.add_argument("--at", type=int, nargs="+", metavar="STEP",
                       help="calls of the denoiser, from 1 (default: three)")
    group.add_argument("--blocks", nargs="+", metavar="NAME",
                       help=f"blocks whose names, such as unet.up_blocks.3, contain one of these; '{ALL}': every block "
                       "that merges (default: the first one of each denoiser and level)")
    add_controlnet_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, args.ratio)
    prompts = check_prompts(args.prompt, settings.model.default_prompts[1:2])
    if len(prompts) > 1:
        raise UserError(f"{len(prompts)} prompts were given, and visualize shows one image; give one --prompt")
    if settings.tome.ratio == 0 or not METHODS[settings.tome.method].compares:
        raise UserError(
            f"{settings.tome.summary} makes no groups of similar tokens, so there is nothing to show; add --method "
            "tome --ratio 0.5, or see the images with ppdiffusers-tome compare"
        )
    paths = prepare_folder(args.output, ["visualize.png", "visualize.json"], overwrite=args.overwrite)
    with quiet_libraries():
        from ppdiffusers_tome.tools.figures.merged_sheets import describe_records, make_groups_sheet
        from ppdiffusers_tome.tools.recorder import record_merging

        loaded, (prompt,) = load_for_prompts(settings, prompts, default=args.prompt is None)
        loaded.apply(settings.tome)
        num_calls = loaded.count_calls()
        calls, blocks = _select_calls(args.at, num_calls), _select_blocks(loaded, args.blocks)
        edges = loaded.load_edges(settings.edges)
        # With guidance there are two halves: the one with the prompt is the first in a DiTPipeline, else the last.
        with record_merging(loaded.pipe, image=-1 if loaded.labels is None else 0) as records:
            traced = loaded.generate(prompt, 0, edges)
        by_block = {block: [record for record in records if record.block == block] for block in blocks}
        by_block = {block: of_block for block, of_block in by_block.items() if of_block}
        if not by_block:
            raise UserError(
                "none of the blocks merged tokens into groups in this image, so there is nothing to show: generate a "
                "larger image, or omit --blocks"
            )
        run = loaded.describe(prompt, 0)
        sheet = make_groups_sheet(traced.image, by_block, num_calls, calls, run, settings.tome.summary)
        write_json(paths[1], {"run": run, "calls": num_calls, "merged": describe_records(records)}, overwrite=True)
        write_image(paths[0], sheet, run, overwrite=True)
        print_line("\n".join([loaded.describe_merging(), *map(str, paths)]))


def _select_calls(wanted: list[int] | None, num_calls: int) -> list[int]:
    """Return the calls of the denoiser to show, numbered from 0."""
    if wanted is None:
        return sorted({round(place * (num_calls - 1) / (_NUM_CALLS - 1)) for place in range(_NUM_CALLS)})
    for call in wanted:
        if not 1 <= call <= num_calls:
            raise UserError(f"--at {call} must be from 1 to {num_calls}, the calls of the denoiser for this image")
    return sorted({call - 1 for call in wanted})


def _select_blocks(loaded: LoadedPipeline, wanted: list[str] | None) -> list[MergingBlock]:
    """Return the blocks to show: by default one a level."""
    from ppdiffusers_tome.tools.recorder import find_merging_blocks

    blocks = list(find_merging_blocks(loaded.pipe).values())
    if wanted is None:
        first: dict[tuple[str, int], MergingBlock] = {}
        for block in blocks:
            first.setdefault((block.denoiser, block.level), block)
        return list(first.values())
    names = {f"{block.denoiser}.{block.path}": block for block in blocks}
    parts = ["" if part == ALL else part for part in wanted]
    for part in parts:
        if not any(part in name for name in names):
            raise UserError(f"--blocks {part} is in no name of a block that merges; these merge: {', '.join(names)}")
    return [block for name, block in names.items() if any(part in name for part in parts)]
