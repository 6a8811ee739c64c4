"""``ppdiffusers-tome generate``: images from prompts, with token merging."""

import argparse
import itertools
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.console.output import choose_bar, import_quietly, print_line
from ppdiffusers_tome.tools.console.tome_arguments import DEFAULT_PRESET, add_tome_arguments, parse_tome_config
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.generation.arguments import add_guide_arguments, add_image_arguments, add_output_arguments
from ppdiffusers_tome.tools.generation.checks import parse_settings
from ppdiffusers_tome.tools.generation.prompts import parse_prompts
from ppdiffusers_tome.tools.generation.settings import ImageSettings
from ppdiffusers_tome.tools.images import read_settings, slugify, write_image
from ppdiffusers_tome.tools.measure.memory import get_process_peak
from ppdiffusers_tome.tools.measure.meter import explain_peak, find_highest_peak
from ppdiffusers_tome.tools.measure.system import get_device_name
from ppdiffusers_tome.tools.measure.units import format_bytes

HELP = "Generate images from prompts with token merging."
EXAMPLES = """Stopped at any moment, the same command generates what is missing. The processes of Paddle's launcher
share the images among them.

  ppdiffusers-tome generate --prompt "a photo of a cat" --image photo.png
  ppdiffusers-tome generate --model runwayml/stable-diffusion-v1-5 --scheduler ddim --dtype float16 --prompt "a cat"
  ppdiffusers-tome generate --prompts prompts.txt --output outputs/many
  python -m paddle.distributed.launch --nproc_per_node 2 ppdiffusers-tome generate --prompts prompts.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser, file=True)
    add_guide_arguments(parser)
    add_tome_arguments(parser, default=f"--config {DEFAULT_PRESET}, with others 0.5")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = replace(parse_settings(args), tome=parse_tome_config(args))
    if args.prompt is None and args.prompts is None:
        raise UserError(f"there is no prompt; give one with --prompt '{settings.model.default_prompts[0]}'")
    prompts = parse_prompts(args)
    names = [f"{number:04d}-{slugify(prompt)}.png" for number, prompt in enumerate(prompts, start=1)]
    paths = prepare_folder(args.output, names, overwrite=True)
    images = list(zip(paths, prompts, itertools.count(settings.seed)))
    rank, ranks = (int(os.environ.get(f"PADDLE_{name}") or 0) for name in ("TRAINER_ID", "TRAINERS_NUM"))
    own = images[rank :: ranks or 1]
    missing = [image for image in own if args.overwrite or not _is_finished(settings, *image)]
    if finished := len(own) - len(missing):
        print_line(f"kept: {format_count(finished, 'image')} of {args.output}; --overwrite generates all again")
    if missing:
        with import_quietly():
            _generate(settings, missing)


def _is_finished(settings: ImageSettings, path: Path, prompt: str, seed: int) -> bool:
    """Return whether an image is there; refuse another one."""
    if not path.exists():
        return False
    kept: dict[str, Any] = {}
    with suppress(Exception):  # whatever the file holds, it is no such image
        kept = read_settings(path)
    for name, value in settings.describe_image(prompt, seed).items():
        is_default = value is None and name in kept.get("defaults", ())
        if not is_default and kept.get(name) != value:
            words = "settings of token merging" if name == "tome" else name.replace("_", " ")
            raise UserError(f"give another --output, or --overwrite: {path} is there and differs in its {words}")
    return True


def _generate(settings: ImageSettings, images: Sequence[tuple[Path, str, int]]) -> None:
    from tqdm import tqdm

    from ppdiffusers_tome.tools.generation.loading import load_for_prompts

    loaded = load_for_prompts(settings, [prompt for _, prompt, _ in images])
    loaded.apply(settings.tome)
    done = []
    for path, prompt, seed in tqdm(images, desc="images", **choose_bar()):
        generated = loaded.generate(prompt, seed)
        write_image(path, generated.image, loaded.describe_image(prompt, seed))
        print_line(f"{path}  {generated.seconds:.2f} s")
        done.append(generated)
    denoising = find_highest_peak(each.denoising_peak_bytes for each in done)
    peak = find_highest_peak(each.peak_bytes for each in done)
    memory = f"{format_bytes(get_process_peak())} (of the process)"
    if denoising is not None:
        memory = f"{format_bytes(denoising)} while denoising, {format_bytes(peak)} with decoding ({explain_peak()})"
    seconds = statistics.median(each.seconds for each in done)
    compiling = "" if settings.compile is None else ", with compiling in the first"
    print_line(
        f"{seconds:.2f} s per image (median of {len(done)}{compiling}) on {get_device_name()}; peak memory {memory}"
    )
    print_line(loaded.describe_merging())
