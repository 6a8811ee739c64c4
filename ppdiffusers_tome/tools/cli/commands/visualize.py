"""``ppdiffusers-tome visualize``: merged tokens over the image, at several ratios."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.output import print_line, quiet_libraries, warn
from ppdiffusers_tome.tools.demo_model import PROMPTS
from ppdiffusers_tome.tools.files import prepare_folder, write_json
from ppdiffusers_tome.tools.generation.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline, load_for_prompts
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.generation.settings import check_prompts, parse_settings, parse_tome_config
from ppdiffusers_tome.tools.images import write_image

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.recorder import MergeRecord, MergingBlock

HELP = "Generate an image and show which of its tokens merged, by step and level; and the image at several ratios."
EXAMPLES = """writes visualize.png (groups of merged tokens over the image: one row per step, one column per block),
visualize-ratios.png (the image without token merging and at every ratio) and visualize.json (groups in numbers,
PSNR, SSIM and FLIP). Groups have their mean color and an outline; tokens that did not merge have no outline. Methods
that compare no tokens, as in all presets, make no groups and no visualize.png.

  ppdiffusers-tome visualize --prompt "a photo of a rocket" --max-downsample 4 --at 1 5 10
  ppdiffusers-tome visualize --image photo.png --blocks up_blocks
"""
RATIOS = (0.25, 0.5, 0.7)
ALL = "all"
_NUM_CALLS = 3  # rows without --at


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    tome = add_tome_arguments(parser)
    tome.add_argument("--ratio", type=float, metavar="X", help="fraction of the tokens to merge (default: 0.5)")
    tome.add_argument("--ratios", type=float, nargs="+", default=list(RATIOS), metavar="X",
                      help=f"ratios of the strip (default: {' '.join(map(str, RATIOS))})")
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
    configs = list(dict.fromkeys(parse_tome_config(args, ratio) for ratio in (0.0, *args.ratios)))
    prompts, has_groups = check_prompts(args.prompt, PROMPTS[1:2]), METHODS[settings.tome.method].compares
    if len(prompts) > 1:
        raise UserError(f"{len(prompts)} prompts were given, and visualize shows one image; give one --prompt")
    if len(configs) == 1 or settings.tome.ratio == 0:
        raise UserError("a ratio of 0 merges nothing, so there is nothing to show; give one such as 0.5")
    names = ["visualize-ratios.png", "visualize.json", "visualize.png"]
    if not has_groups:
        configs = list(dict.fromkeys([*configs, settings.tome]))
        names.pop()
        warn(
            f"method {settings.tome.method} makes no groups of similar tokens, so there is no visualize.png; to see "
            "groups, add --method tome --ratio 0.5"
        )
    paths = prepare_folder(args.output, names, overwrite=args.overwrite)
    with quiet_libraries():
        from ppdiffusers_tome.tools.figures import merged_sheets

        loaded, (prompt,) = load_for_prompts(settings, prompts, default=args.prompt is None)
        loaded.apply(settings.tome)
        num_calls = loaded.count_calls()
        calls, blocks = _select_calls(args.at, num_calls), _select_blocks(loaded, args.blocks)
        traced, records, by_ratio = _generate(loaded, prompt, configs)
        run = loaded.describe(prompt, 0, settings.tome.ratio)
        sheets = [merged_sheets.make_ratios_sheet(run, by_ratio)]
        if has_groups:
            by_block = {block: [record for record in records if record.block == block] for block in blocks}
            by_block = {block: of_block for block, of_block in by_block.items() if of_block}
            if not by_block:
                raise UserError(
                    "none of the blocks merged tokens into groups in this image, so there is nothing to show: generate "
                    "a larger image, or omit --blocks"
                )
            summary = settings.tome.summary
            sheets.append(merged_sheets.make_groups_sheet(traced.image, by_block, num_calls, calls, run, summary))
        numbers = {"run": run, "calls": num_calls, "merged": merged_sheets.describe_records(records),
                   "ratios": merged_sheets.describe_ratios(by_ratio)}  # fmt: skip
        write_json(paths[1], numbers, overwrite=True)
        for path, sheet in zip((paths[0], *paths[2:]), sheets, strict=True):
            write_image(path, sheet, run, overwrite=True)
        print_line("\n".join(map(str, paths)))


def _select_calls(wanted: list[int] | None, num_calls: int) -> list[int]:
    """Return the calls of the denoiser to show, numbered from 0."""
    from ppdiffusers_tome.tools.figures.merging import spread_calls

    if wanted is None:
        return spread_calls(num_calls, _NUM_CALLS)
    for call in wanted:
        if not 1 <= call <= num_calls:
            raise UserError(f"--at {call} must be from 1 to {num_calls}, the calls of the denoiser for this image")
    return sorted({call - 1 for call in wanted})


def _select_blocks(loaded: LoadedPipeline, wanted: list[str] | None) -> list[MergingBlock]:
    """Return the blocks to show."""
    from ppdiffusers_tome.patching.recorder import merging_blocks
    from ppdiffusers_tome.tools.figures.merging import first_blocks_by_level

    blocks = merging_blocks(loaded.pipe)
    if wanted is None:
        return first_blocks_by_level(blocks)
    names = {f"{block.denoiser}.{block.path}": block for block in blocks}
    parts = [""] if ALL in wanted else wanted
    for part in parts:
        if not any(part in name for name in names):
            raise UserError(f"--blocks {part} is in no name of a block that merges; these merge: {', '.join(names)}")
    return [block for name, block in names.items() if any(part in name for part in parts)]


def _generate(
    loaded: LoadedPipeline, prompt: str, configs: list[ToMeConfig]
) -> tuple[GeneratedImage, list[MergeRecord], list[tuple[ToMeConfig, GeneratedImage]]]:
    """Generate the image with the settings, traced, and at every ratio."""
    from tqdm import tqdm

    edges = None if loaded.settings.edges is None else loaded.load_edges(loaded.settings.edges)
    by_ratio: list[tuple[ToMeConfig, GeneratedImage]] = []
    traced, records = loaded.generate_traced(prompt, 0, edges)
    for config in tqdm(configs, desc="images", position=0, disable=None):
        generated = traced
        if config != loaded.settings.tome:
            loaded.apply_ratio(config.ratio)
            generated = loaded.generate(prompt, 0, edges)
        by_ratio.append((config, generated.compare_with(by_ratio[0][1].image) if by_ratio else generated))
    return traced, records, by_ratio
