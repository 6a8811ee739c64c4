"""``ppdiffusers-tome generate``: images from prompts, with token merging."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from ppdiffusers_tome.files import prepare_folder
from ppdiffusers_tome.tools.console.output import print_line, quiet_libraries
from ppdiffusers_tome.tools.console.parsing import refuse_options
from ppdiffusers_tome.tools.generation.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts
from ppdiffusers_tome.tools.generation.settings import check_prompts, parse_settings
from ppdiffusers_tome.tools.images import slugify, write_image
from ppdiffusers_tome.tools.measure.meter import explain_peak, find_highest_peak
from ppdiffusers_tome.tools.measure.system import get_device_name
from ppdiffusers_tome.tools.measure.units import format_bytes

HELP = "Generate images from prompts with token merging."
EXAMPLES = """a line of --prompts may have its own seed, ratio, image, ...: docs/en/guides/many-prompts.md
stopped at any moment, the same command generates what is missing; a line that cannot be used is skipped and named.

  ppdiffusers-tome generate --prompt "a photo of a cat" --image photo.png
  ppdiffusers-tome generate --model runwayml/stable-diffusion-v1-5 --dtype float16 --xformers --prompt "a black cat"
  ppdiffusers-tome generate --prompts prompts.jsonl --batch-size 4 --output outputs/many
  python -m paddle.distributed.launch --nproc_per_node 2 ppdiffusers-tome generate --prompts prompts.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    add_tome_arguments(parser, ratio=True)
    add_controlnet_arguments(parser)
    group = parser.add_argument_group("many images")
    group.add_argument("--prompts", type=Path, metavar="FILE", help="one image per line: .txt, .csv, .tsv or .jsonl")
    group.add_argument("--batch-size", type=int, metavar="N", help="generate N at once (default: 1)")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    if args.prompts is not None:
        from ppdiffusers_tome.tools.batch.run import generate_from_file

        generate_from_file(args)
        return
    refuse_options(args, ["--batch-size"], "is for files of prompts; give one with --prompts")
    prompts = check_prompts(args.prompt)
    settings = parse_settings(args, args.ratio)
    names = [f"{number:04d}-{slugify(prompt)}.png" for number, prompt in enumerate(prompts, start=1)]
    paths = prepare_folder(args.output, names, overwrite=args.overwrite)
    with quiet_libraries():
        from tqdm import tqdm

        loaded, _ = load_for_prompts(settings, prompts)
        loaded.apply(settings.tome)
        edges = loaded.load_edges(settings.edges)
        images = []
        for number, prompt in enumerate(tqdm(prompts, desc="images", position=0, disable=None)):
            generated = loaded.generate(prompt, number, edges)
            description = loaded.describe(prompt, number)
            write_image(paths[number], generated.image, description, overwrite=args.overwrite)
            print_line(f"{paths[number]}  {generated.seconds:.2f} s")
            images.append(generated)
        denoising = format_bytes(find_highest_peak(image.denoising_peak_bytes for image in images))
        peak = format_bytes(find_highest_peak(image.peak_bytes for image in images))
        seconds = statistics.median(image.seconds for image in images)
        print_line(
            f"{seconds:.2f} s per image (median of {len(images)}) on {get_device_name()}; peak memory {denoising} "
            f"while denoising, {peak} with decoding ({explain_peak()})"
        )
        print_line(loaded.describe_merging())
