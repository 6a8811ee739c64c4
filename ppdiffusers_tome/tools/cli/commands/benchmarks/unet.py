"""``ppdiffusers-tome bench unet``: a UNet with every variant."""

from __future__ import annotations

import argparse

from ppdiffusers_tome.tools.bench.random_models import RANDOM_UNETS
from ppdiffusers_tome.tools.bench.sweep import add_sweep_arguments, run_sweep
from ppdiffusers_tome.tools.bench.workloads import UNET
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, find_model

HELP = "Measure a UNet: unmerged, with the port, with this package, and with tokens dropped at no cost."
EXAMPLES = """the seconds of a UNet call are the mean over a short schedule of steps; the variants take turns in one
process. Running out of memory is a cell of the table. Writes unet.md, unet.json and unet.png, and unet.jsonl line by
line: stopped, the same command resumes. The models with random weights need no download.

examples:
  ppdiffusers-tome bench unet
  ppdiffusers-tome bench unet --model sd15-random --sizes 512 768 --attention plain chunked --output outputs/sd15
  ppdiffusers-tome bench unet --model sd15-random --sizes 1024 --ratios 0.5 0.7 --variants none ours ours-fast \\
      --repeats 0 --memory-limit 20GiB --output outputs/sd15-memory
  ppdiffusers-tome bench unet --model runwayml/stable-diffusion-v1-5 --dtype float16 --attention plain xformers flash \\
      --sizes 512 768 1024 --batches 1 2 4 8 16 32 64 --ratios 0.5 0.749
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=BUNDLED, metavar="MODEL",
                        help=f"a pipeline's folder, a hub name, or one with random weights: {', '.join(RANDOM_UNETS)} "
                        f"(default: {BUNDLED})")
    parser.add_argument("--steps", type=int, default=4, metavar="N",
                        help="UNet calls of one timed run, at descending timesteps (default: 4)")
    add_sweep_arguments(parser)


def run(args: argparse.Namespace) -> None:
    if args.model not in RANDOM_UNETS:
        find_model(args.model)
    run_sweep(args, "unet", "A UNet with token merging", UNET, steps=args.steps)
