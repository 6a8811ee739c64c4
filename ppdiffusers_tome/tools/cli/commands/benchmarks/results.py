"""``ppdiffusers-tome bench results``: the table of docs/en/results/index.md, on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.random_models import RANDOM_UNETS
from ppdiffusers_tome.tools.bench.runner import parse_count, parse_size, run_benchmark
from ppdiffusers_tome.tools.bench.variants import FREE, NONE, OURS, PORT, PRESETS, VARIANTS, label_variants
from ppdiffusers_tome.tools.bench.workloads import ATTENTIONS, CHUNKED, Case
from ppdiffusers_tome.tools.console.parsing import refuse_options
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments
from ppdiffusers_tome.tools.generation.model_loader import DTYPES

HELP = "Measure the table of docs/en/results/index.md here: Stable Diffusion 1.5's shape at 512, 768 and 1024."
EXAMPLES = """one call of the UNet with random weights: unmerged, ppdiffusers' port, this package matching globally, in
tiles and with every preset, and tokens dropped at no cost. All take turns. On 2 cores it takes less than half an hour.
Writes results.md and results.json, and results.jsonl line by line: stopped, the same command resumes, and with more
--repeats it adds rounds.

examples:
  ppdiffusers-tome bench results
  ppdiffusers-tome bench results --sizes 512 --repeats 5 --attention plain --output outputs/plain
"""

_SIZES, _REPEATS = (512, 768, 1024), (3, 2, 1)
_VARIANTS = (NONE, PORT, OURS, "ours-tile", *PRESETS.values(), FREE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=list(RANDOM_UNETS), default="sd15-random", metavar="MODEL",
                        help=f"a UNet with random weights: {', '.join(RANDOM_UNETS)} (default: sd15-random)")
    group = parser.add_argument_group("what is compared (every combination is measured)")
    group.add_argument("--sizes", type=parse_size, nargs="+", default=_SIZES, metavar="PIXELS",
                       help=f"heights and widths of square images (default: {_join(_SIZES)})")
    group.add_argument("--batches", type=parse_count, nargs="+", default=[1], metavar="N",
                       help="rows of the denoiser's batch, of which guidance takes two (default: 1)")
    group.add_argument("--ratios", type=float, nargs="+", default=[0.5], metavar="X",
                       help="fractions of the tokens to merge (default: 0.5)")
    group.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=[CHUNKED], metavar="NAME",
                       help=f"{', '.join(ATTENTIONS)} (default: {CHUNKED}; the last two need a GPU)")
    group.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=_VARIANTS, metavar="NAME",
                       help=f"{', '.join(VARIANTS)} (default: {_join(_VARIANTS)}; {NONE} always runs)")
    group.add_argument("--repeats", type=parse_count, nargs="+", default=_REPEATS, metavar="N",
                       help="rounds at each of the sizes, in which the variants take turns; the last number counts for "
                       f"all sizes that follow (default: {_join(_REPEATS)})")
    group.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    for ratio in args.ratios:
        ToMeConfig(ratio=ratio)  # checks its range
    if not any(VARIANTS[name].takes_ratio for name in args.variants):
        refuse_options(args, ["--ratios"], f"has no effect on {_join(args.variants)}; add another of --variants")
    if "--repeats" in args.given and len(args.repeats) > len(args.sizes):
        raise UserError(f"--repeats has {len(args.repeats)} numbers for {len(args.sizes)} --sizes; give one a size")
    repeats = {
        Case(args.model, args.dtype, attention, size, batch, 1): args.repeats[min(number, len(args.repeats) - 1)]
        for (number, size), batch, attention in product(enumerate(args.sizes), args.batches, args.attention)
    }
    variants = label_variants(args.variants, args.ratios)
    run_benchmark(args, "results", "One call of the UNet, unmerged and merged", repeats, variants)


def _join(values: Sequence[object]) -> str:
    return " ".join(map(str, values))
