"""``ppdiffusers-tome bench pipeline``: whole images with every variant."""

from __future__ import annotations

import argparse

from ppdiffusers_tome.tools.bench.runner import add_sweep_arguments, parse_count, run_sweep
from ppdiffusers_tome.tools.generation.arguments import add_trust_argument
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, find_model

HELP = "Measure whole images: unmerged, with the port, with this package, and with tokens dropped at no cost."
EXAMPLES = """seconds per image are those of a whole pipeline call, text encoder and decoding included; variants take
turns. Running out of a GPU's memory is a cell of the table. Writes pipeline.md and pipeline.json, and pipeline.jsonl
line by line: stopped, the same command resumes.

examples:
  ppdiffusers-tome bench pipeline
  ppdiffusers-tome bench pipeline --model runwayml/stable-diffusion-v1-5 --dtype float16 --attention plain xformers \\
      --sizes 512 768 1024 --batches 1 2 4 8 16 32 --ratios 0.5 0.749
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=BUNDLED, metavar="MODEL",
                        help=f"a pipeline's folder or a hub name (default: {BUNDLED})")
    add_trust_argument(parser)
    parser.add_argument("--steps", type=parse_count, metavar="N",
                        help="denoising steps (default: 20; bundled model: 10)")
    add_sweep_arguments(parser)


def run(args: argparse.Namespace) -> None:
    model = find_model(args.model, trusts_code=args.trust_model_code)
    steps = args.steps or (10 if model.bundled else 20)
    run_sweep(args, "pipeline", "A pipeline with token merging", steps=steps)
