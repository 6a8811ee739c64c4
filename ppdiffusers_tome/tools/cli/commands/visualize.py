"""``ppdiffusers-tome visualize``: which tokens merged where, over the picture, and the picture at several ratios."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.tools.cli.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.demo_model import PROMPTS
from ppdiffusers_tome.tools.generation.class_labels import ClassLabels, select_prompts
from ppdiffusers_tome.tools.generation.settings import Settings, check_prompts, parse_settings

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.patching.recorder import MergeRecord, MergingBlock
    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
    from ppdiffusers_tome.tools.generation.results import GeneratedImage

HELP = "Draw a picture and show which of its tokens merged where, by step and level; and the picture at several ratios."
EXAMPLES = """writes visualize.png (groups of merged tokens over the picture: one row per step, one column per block),
visualize-ratios.png (the picture without token merging and at every ratio) and visualize.json (groups in numbers,
PSNR, SSIM and FLIP). Groups have their mean colour and an outline; tokens that did not merge have no outline.

examples:
  ppdiffusers-tome visualize
  ppdiffusers-tome visualize --prompt "a photo of a rocket" --max-downsample 4 --at 1 5 10
  ppdiffusers-tome visualize --image photo.png --blocks up_blocks --visualdl outputs/visualdl
"""
RATIOS = (0.25, 0.5, 0.7)
ROWS = 3
ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    tome = add_tome_arguments(parser)
    tome.add_argument("--ratio", type=float, metavar="X",
                      help="share of the tokens to merge, below 0.75 for a 2x2 stride (default: 0.5)")
    tome.add_argument("--ratios", type=float, nargs="+", default=list(RATIOS), metavar="X",
                      help=f"ratios of the strip (default: {' '.join(map(str, RATIOS))})")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--at", type=int, nargs="+", metavar="STEP",
                       help="calls of the denoiser, from 1 (default: the first, a middle and the last)")
    shown.add_argument("--blocks", nargs="+", metavar="NAME",
                       help=f"blocks whose names, such as unet.up_blocks.3, have one of these in them; '{ALL}': every "
                       "block that merges (default: the first one of each denoiser and level)")
    shown.add_argument("--visualdl", type=Path, metavar="FOLDER",
                       help="write the same pictures there as records of VisualDL too")
    add_controlnet_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    ratios = _ratios(args.ratios)
    for ratio in ratios:
        parse_settings(args, ratio)
    settings = parse_settings(args, args.ratio)
    prompt = _prompt(args.prompt, settings.model.labels)
    if settings.tome.ratio == 0:
        raise UserError("--ratio 0 merges nothing, so there is nothing to show; give a ratio such as 0.5")
    if not METHODS[settings.tome.method].compares:
        raise UserError(
            f"method {settings.tome.method} computes no similarities, so there is nothing to show; choose a --method "
            "that does, such as tome"
        )
    if args.at and min(args.at) < 1:
        raise UserError(f"--at {min(args.at)} must be 1 or more: calls of the denoiser are counted from 1")
    from ppdiffusers_tome.tools.files import prepare_folder

    names = ["visualize.png", "visualize-ratios.png", "visualize.json"]
    records = None
    if args.visualdl is not None:
        from ppdiffusers_tome.tools.figures.dashboard import prepare_records

        records = prepare_records(args.visualdl, overwrite=args.overwrite)
    paths = prepare_folder(args.output, names, overwrite=args.overwrite)
    from ppdiffusers_tome.tools.cli.console.output import quiet_libraries

    with quiet_libraries():
        _visualize(args, settings, prompt, ratios, paths, records)


def _prompt(given: list[str] | None, labels: ClassLabels | None) -> str:
    """The one prompt of the one picture that is shown."""
    prompts = check_prompts(select_prompts(labels, given, PROMPTS[1:2]))
    if len(prompts) > 1:
        raise UserError(f"{len(prompts)} prompts were given, and visualize shows one picture; give one --prompt")
    return prompts[0]


def _ratios(given: list[float]) -> list[float]:
    """The ratios of the strip, 0 first."""
    ratios = list(dict.fromkeys([0.0, *given]))
    if ratios == [0.0]:
        raise UserError("--ratios 0 leaves nothing to compare with the unmerged picture; add another, such as 0.5")
    return ratios


def _visualize(
    args: argparse.Namespace, settings: Settings, prompt: str, ratios: list[float], paths: list[Path],
    records_path: Path | None,
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.cli.console.output import print_line
    from ppdiffusers_tome.tools.figures.dashboard import write_records
    from ppdiffusers_tome.tools.figures.merged_sheets import MergedPicture, numbers, ratios_sheet
    from ppdiffusers_tome.tools.files import write_json
    from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts
    from ppdiffusers_tome.tools.images import write_image

    loaded, (prompt,) = load_for_prompts(settings, [prompt], default=args.prompt is None)
    loaded.apply_ratio(settings.tome.ratio)
    calls = loaded.count_calls()
    blocks, shown = _blocks(loaded, args.blocks), _shown(args.at, calls)
    picture, records, by_ratio = _draw_all(loaded, prompt, ratios)
    run = loaded.describe(prompt, 0, settings.tome.ratio)
    merged = MergedPicture(picture, _by_block(records, blocks), calls, shown)
    for path, sheet in ((paths[0], merged.sheet(run, settings.tome.summary)), (paths[1], ratios_sheet(run, by_ratio))):
        write_image(path, sheet, run, overwrite=args.overwrite)
    write_json(paths[2], {"run": run, "calls": calls, **numbers(records, by_ratio)}, overwrite=args.overwrite)
    if records_path is not None:
        strip = [("ratio in percent", round(100 * ratio), drawn.image) for ratio, drawn in by_ratio.items()]
        write_records(records_path, [*merged.single_pictures(), *strip], overwrite=args.overwrite)
    for path in [*paths, *([] if records_path is None else [records_path])]:
        print_line(str(path))


def _shown(wanted: list[int] | None, calls: int) -> list[int]:
    """The calls of the denoiser to show, from 0."""
    from ppdiffusers_tome.tools.figures.merged_sheets import spread_calls

    if wanted is None:
        return spread_calls(calls, ROWS)
    if max(wanted) > calls:
        raise UserError(
            f"--at {max(wanted)} must be at most {calls}: that is how often the denoiser is called for this picture"
        )
    return sorted({call - 1 for call in wanted})


def _blocks(loaded: LoadedPipeline, wanted: list[str] | None) -> list[MergingBlock]:
    """The blocks to show."""
    from ppdiffusers_tome.patching.recorder import merging_blocks
    from ppdiffusers_tome.tools.figures.merged_sheets import first_of_levels

    blocks = merging_blocks(loaded.pipe)
    if wanted is None:
        return first_of_levels(blocks)
    names = [f"{block.denoiser}.{block.path}" for block in blocks]
    for part in wanted:
        if part != ALL and not any(part in name for name in names):
            raise UserError(
                f"--blocks {part} is in the name of no block that merges; those that merge: {', '.join(names)}"
            )
    return [
        block for block, name in zip(blocks, names, strict=True) if any(part == ALL or part in name for part in wanted)
    ]


def _draw_all(
    loaded: LoadedPipeline, prompt: str, ratios: list[float]
) -> tuple[Image.Image, list[MergeRecord], dict[float, GeneratedImage]]:
    """The picture with the settings, how it merged, and the picture at every ratio; all from the same noise."""
    from tqdm import tqdm

    edges = None if loaded.settings.edges is None else loaded.load_edges(loaded.settings.edges)
    by_ratio: dict[float, GeneratedImage] = {}
    with tqdm(total=1 + len(ratios), desc="pictures", position=0, disable=None) as bar:
        own, records = loaded.generate_traced(prompt, 0, edges)
        bar.update()
        for ratio in ratios:
            drawn = own
            if ratio != loaded.settings.tome.ratio:
                loaded.apply_ratio(ratio)
                drawn = loaded.generate(prompt, 0, edges)
            by_ratio[ratio] = drawn.compare_with(by_ratio[0.0].image) if ratio else drawn
            bar.update()
    return own.image, records, by_ratio


def _by_block(records: list[MergeRecord], blocks: list[MergingBlock]) -> dict[MergingBlock, list[MergeRecord]]:
    """The records of the blocks to show, but for those in which nothing merged.

    Raises:
        UserError: nothing merged in any.
    """
    found: dict[MergingBlock, list[MergeRecord]] = {}
    for block in blocks:
        own = [record for record in records if record.block == block]
        if own:
            found[block] = own
    if not found:
        raise UserError(
            "none of the blocks to show merged tokens into groups in this picture, so there is nothing to show: draw a "
            "larger picture, leave out --blocks, or choose a --method that makes groups, such as tome"
        )
    return found
