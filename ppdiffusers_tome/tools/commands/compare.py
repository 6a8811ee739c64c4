"""``ppdiffusers-tome compare``: the same pictures without and with token merging, side by side and in numbers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.drawing.arguments import (
    add_controlnet_arguments,
    add_output_arguments,
    add_picture_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.drawing.settings import (
    Settings,
    check_prompts,
    settings_from,
    tome_from,
)

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.drawing.studio import Studio
    from ppdiffusers_tome.tools.figures.comparison import PictureResult

HELP = "Draw the same pictures without and with token merging; compare speed, memory and quality."
EXAMPLES = """writes compare.png (a sheet of all pictures), compare.md and compare.json (the table); with a ControlNet
they are called compare-controlnet.*. With '--controlnet bundled' and no picture, the edges of a drawn scene are used.

examples:
  ppdiffusers-tome compare
  ppdiffusers-tome compare --ratios 0.5 --steps 5 --prompt "a yellow star on a purple background"
  ppdiffusers-tome compare --controlnet bundled
  ppdiffusers-tome compare --ratios 0.5 --configs quality balanced fast
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
    tome.add_argument("--ratios", type=float, nargs="*", metavar="X",
                      help=f"shares of the tokens to merge (default: {' '.join(map(str, RATIOS))}, without --configs)")
    tome.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                      help="settings to compare as well, each a column: JSON files, or presets")
    add_controlnet_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = settings_from(args, 0.0, edges_drawn=args.controlnet is not None)
    columns = _columns(args)
    default = PROMPTS if settings.controlnet is None else CONTROLNET_PROMPTS
    prompts = check_prompts(list(default) if args.prompt is None else args.prompt)
    from ppdiffusers_tome.exporting.files import prepare_folder

    stem = "compare" if settings.controlnet is None else "compare-controlnet"
    paths = prepare_folder(args.output, [f"{stem}.{end}" for end in ("png", "md", "json")], overwrite=args.overwrite)
    from ppdiffusers_tome.tools.console.output import quiet_libraries

    with quiet_libraries():
        _compare(settings, prompts, columns, paths, overwrite=args.overwrite)


def _columns(args: argparse.Namespace) -> dict[str, ToMeConfig | None]:
    """What is compared, by name: the unmerged pictures first."""
    ratios = args.ratios if args.ratios is not None else [] if args.configs else RATIOS
    columns: dict[str, ToMeConfig | None] = {"unmerged": None}
    columns |= {f"ratio {ratio:g}": tome_from(args, ratio) for ratio in ratios if ratio != 0}
    for named in args.configs:
        name = Path(named).stem
        if name in columns:
            raise UserError(f"--configs {named}: another column is called {name!r} already; rename one of the files")
        columns[name] = ToMeConfig.named(named)
    if len(columns) == 1:
        raise UserError("--ratios 0 leaves nothing to compare with the unmerged pictures; add another, such as 0.5")
    return columns


def _compare(
    settings: Settings, prompts: list[str], columns: Mapping[str, ToMeConfig | None], paths: list[Path], *,
    overwrite: bool,
) -> None:  # fmt: skip
    from ppdiffusers_tome.exporting.files import write_whole
    from ppdiffusers_tome.tools.console.output import say
    from ppdiffusers_tome.tools.drawing.picture_files import write_picture
    from ppdiffusers_tome.tools.drawing.studio import open_studio
    from ppdiffusers_tome.tools.figures.comparison import as_json, by_setting, markdown
    from ppdiffusers_tome.tools.figures.showing import sheet, words
    from ppdiffusers_tome.tools.measuring.measure import memory_meaning

    studio = open_studio(settings, prompts)
    edges = _edges(studio, prompts)
    pictures = _draw_all(studio, prompts, columns, edges)
    results = [result for result, _ in pictures]
    summary = by_setting(results)
    tomes = {name: None if tome is None else tome.to_dict() for name, tome in columns.items()}
    run = {**studio.describe_run(), "seed": settings.seed, "tome": tomes, "memory": memory_meaning()}
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
    from ppdiffusers_tome.tools.drawing.edges import scene_edges

    if studio.settings.controlnet is None:
        return None
    if studio.settings.edges is None:
        return scene_edges(prompts[0], studio.height, studio.width)
    return studio.settings.edges.load(studio.height, studio.width)


def _draw_all(
    studio: Studio, prompts: list[str], columns: Mapping[str, ToMeConfig | None], edges: Image.Image | None
) -> list[tuple[PictureResult, Image.Image]]:
    """Draw every prompt with all settings, unmerged first, all from the same noise.

    All are warmed up before anything is timed, and a prompt is drawn with all before the next one's turn, so that what
    slows the machine down for a while slows all of them.
    """
    import numpy as np
    from tqdm import tqdm

    from ppdiffusers_tome.tools.figures.comparison import PictureResult
    from ppdiffusers_tome.tools.measuring.similarity import compare_pictures

    for tome in tqdm(columns.values(), desc="warming up", position=0, leave=False, disable=None):
        studio.put_on(tome)
        studio.draw(prompts[0], 0, edges, steps=WARM_UP_STEPS)
    pictures = []
    with tqdm(total=len(columns) * len(prompts), desc="pictures", position=0, disable=None) as bar:
        for number, prompt in enumerate(prompts):
            for name, tome in columns.items():
                studio.put_on(tome)
                drawn = studio.draw(prompt, number, edges)
                if tome is None:
                    unmerged = np.asarray(drawn.result)
                quality = None if tome is None else compare_pictures(unmerged, np.asarray(drawn.result))
                ratio = 0.0 if tome is None else tome.to_dict()["ratio"]
                peaks = drawn.peak_bytes_at_mark, drawn.peak_bytes
                pictures.append((PictureResult(prompt, name, ratio, drawn.seconds, *peaks, quality), drawn.result))
                bar.update()
    return pictures
