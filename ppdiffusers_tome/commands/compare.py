"""``ppdiffusers-tome compare``: the same pictures without and with token merging, side by side and in numbers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.commands.shared.arguments import (
    add_controlnet_arguments,
    add_output_arguments,
    add_picture_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.commands.shared.settings import Settings, check_prompts, settings_from
from ppdiffusers_tome.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.commands.shared.comparison import PictureResult
    from ppdiffusers_tome.commands.shared.studio import Studio

HELP = "Draw the same pictures without and with token merging; compare speed, memory and quality."
EXAMPLES = """writes compare.png (a sheet of all pictures), compare.md and compare.json (the table); with a ControlNet
they are called compare-controlnet.*. With '--controlnet bundled' and no picture, the edges of a drawn scene are used.

examples:
  ppdiffusers-tome compare
  ppdiffusers-tome compare --ratios 0.5 --steps 5 --prompt "a yellow star on a purple background"
  ppdiffusers-tome compare --controlnet bundled
"""

# Three that the bundled model never saw in training, and, for a ControlNet, three ways to colour the same shapes.
PROMPTS = (
    "a yellow triangle on a blue background",
    "a purple triangle above a green circle on a white background",
    "an orange square right of a red circle on a white background",
)
CONTROLNET_PROMPTS = (
    "a red star left of a blue circle on a white background",
    "a yellow star left of a green circle on a purple background",
    "a white star left of an orange circle on a black background",
)
RATIOS = (0.25, 0.5, 0.7)
WARM_UP_STEPS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_picture_arguments(parser)
    tome = add_tome_arguments(parser)
    tome.add_argument("--ratios", type=float, nargs="+", default=list(RATIOS), metavar="X",
                      help=f"shares of the tokens to merge (default: {' '.join(map(str, RATIOS))})")
    add_controlnet_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    ratios = list(dict.fromkeys([0.0, *args.ratios]))
    if ratios == [0.0]:
        raise UserError("--ratios 0 leaves nothing to compare with the unmerged pictures; add another, such as 0.5")
    drawn_edges = args.controlnet is not None
    for ratio in ratios:
        settings = settings_from(args, ratio, edges_drawn=drawn_edges)
    default = PROMPTS if settings.controlnet is None else CONTROLNET_PROMPTS
    prompts = check_prompts(list(default) if args.prompt is None else args.prompt)
    from ppdiffusers_tome.pictures import prepare_folder

    stem = "compare" if settings.controlnet is None else "compare-controlnet"
    paths = prepare_folder(args.output, [f"{stem}.{end}" for end in ("png", "md", "json")], overwrite=args.overwrite)
    from ppdiffusers_tome.commands.shared.quiet import quiet_libraries

    with quiet_libraries():
        _compare(settings, prompts, ratios, paths, overwrite=args.overwrite)


def _compare(
    settings: Settings, prompts: list[str], ratios: list[float], paths: list[Path], *, overwrite: bool
) -> None:
    from ppdiffusers_tome.commands.shared.comparison import as_json, by_ratio, markdown
    from ppdiffusers_tome.commands.shared.quiet import say
    from ppdiffusers_tome.commands.shared.showing import sheet, words
    from ppdiffusers_tome.commands.shared.studio import open_studio
    from ppdiffusers_tome.measure import memory_meaning
    from ppdiffusers_tome.pictures import write_picture, write_whole

    studio = open_studio(settings, prompts)
    edges = _edges(studio, prompts)
    pictures = _draw_all(studio, prompts, ratios, edges)
    results = [result for result, _ in pictures]
    summary = by_ratio(results)
    tome = {name: value for name, value in settings.tome.to_dict().items() if name != "ratio"}
    run = {**studio.describe_run(), "seed": settings.seed, "tome": tome, "memory": memory_meaning()}
    title, notes = words(run)
    table = markdown(title, notes, summary)
    text = json.dumps({"run": run, **as_json(summary, results)}, indent=2, allow_nan=False) + "\n"
    write_picture(paths[0], sheet(title, notes, edges, summary, pictures), run, overwrite=overwrite)
    write_whole(paths[1], lambda file: file.write(table.encode()), overwrite=overwrite)
    write_whole(paths[2], lambda file: file.write(text.encode()), overwrite=overwrite)
    say(table)
    for path in paths:
        say(str(path))


def _edges(studio: Studio, prompts: list[str]) -> Image.Image | None:
    """The edges that all pictures share; those of the first prompt's scene where none were given."""
    from ppdiffusers_tome.edges import scene_edges

    if studio.settings.controlnet is None:
        return None
    if studio.settings.edges is None:
        return scene_edges(prompts[0], studio.height, studio.width)
    return studio.settings.edges.load(studio.height, studio.width)


def _draw_all(
    studio: Studio, prompts: list[str], ratios: list[float], edges: Image.Image | None
) -> list[tuple[PictureResult, Image.Image]]:
    """Draw every prompt at every ratio, unmerged first, all from the same noise.

    Every ratio is warmed up before anything is timed, and a prompt is drawn at all ratios before the next one's turn,
    so that what slows the machine down for a while slows all ratios.
    """
    import numpy as np
    from tqdm import tqdm

    from ppdiffusers_tome.commands.shared.comparison import PictureResult
    from ppdiffusers_tome.quality import compare_pictures

    for ratio in tqdm(ratios, desc="warming up", position=0, leave=False, disable=None):
        studio.set_ratio(ratio)
        studio.draw(prompts[0], 0, edges, steps=WARM_UP_STEPS)
    pictures = []
    with tqdm(total=len(ratios) * len(prompts), desc="pictures", position=0, disable=None) as bar:
        for number, prompt in enumerate(prompts):
            for ratio in ratios:
                studio.set_ratio(ratio)
                drawn = studio.draw(prompt, number, edges)
                if ratio == 0:
                    unmerged = np.asarray(drawn.result)
                quality = compare_pictures(unmerged, np.asarray(drawn.result)) if ratio else None
                peaks = drawn.peak_bytes_at_mark, drawn.peak_bytes
                pictures.append((PictureResult(prompt, ratio, drawn.seconds, *peaks, quality), drawn.result))
                bar.update()
    return pictures
