"""``ppdiffusers-tome bench unet``: one UNet without merging, with the port, with ours, and at the limit."""

from __future__ import annotations

import argparse

from ppdiffusers_tome.tools.bench.arguments import add_sweep_arguments, plan_from
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, find_model

HELP = "Measure a UNet: unmerged, with the port, with this package, and with tokens dropped at no cost."
EXAMPLES = """the seconds of a UNet call are the mean over a short schedule of steps; contenders take turns in one
process. Running out of memory is a cell of the table. Writes unet.md, unet.json and unet.png, and unet.jsonl line by
line: stopped, the same command resumes where it was. The models with random weights have Stable Diffusion 1.5's shape,
or a tiny one, and need no download.

examples:
  ppdiffusers-tome bench unet
  ppdiffusers-tome bench unet --model sd15-random --sizes 512 768 --attention plain chunked --output outputs/sd15
  ppdiffusers-tome bench unet --model sd15-random --sizes 1024 --ratios 0.5 0.7 --contenders none ours ours-fast \\
      --repeats 0 --memory-limit 20GiB --output outputs/sd15-memory
  ppdiffusers-tome bench unet --model runwayml/stable-diffusion-v1-5 --dtype float16 --attention plain xformers flash \\
      --sizes 512 768 1024 --batches 1 2 4 8 16 32 64 --ratios 0.5 0.749
"""
STEPS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=BUNDLED, metavar="MODEL",
                        help=f"a pipeline's folder, a hub name, or one with random weights: {', '.join(RANDOM_UNETS)} "
                        "(default: the small model that comes with this package)")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N",
                        help=f"UNet calls of one timed run, at descending timesteps (default: {STEPS})")
    add_sweep_arguments(parser, batch_help="rows of the UNet's batch; guidance takes two a picture (default: 1)")


def run(args: argparse.Namespace) -> None:
    from ppdiffusers_tome.tools.bench.sweep import run_plan

    plan = plan_from(args, "unet", steps=args.steps)
    if args.model not in RANDOM_UNETS:
        find_model(args.model)
    run_plan(plan, args, "A UNet with token merging")
