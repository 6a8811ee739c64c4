"""``ppdiffusers-tome bench results``: the table of docs/en/results/index.md, on this machine."""

from __future__ import annotations

import argparse

from ppdiffusers_tome.tools.bench.random_models import RANDOM_UNETS
from ppdiffusers_tome.tools.bench.runner import add_sweep_arguments, run_sweep
from ppdiffusers_tome.tools.bench.variants import FREE, NONE, OURS, PORT, PRESETS
from ppdiffusers_tome.tools.bench.workloads import CHUNKED

HELP = "Measure the table of docs/en/results/index.md here: Stable Diffusion 1.5's shape at 512, 768 and 1024."
EXAMPLES = """one call of the UNet with random weights: unmerged, ppdiffusers' port, this package matching globally, in
tiles and with every preset, and tokens dropped at no cost. All take turns. On 2 cores it takes less than half an hour.
Writes results.md and results.json, and results.jsonl line by line: stopped, the same command resumes, and with more
--repeats it adds rounds.

examples:
  ppdiffusers-tome bench results
  ppdiffusers-tome bench results --sizes 512 --repeats 5 --attention plain --output outputs/plain
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=list(RANDOM_UNETS), default="sd15-random", metavar="MODEL",
                        help=f"a UNet with random weights: {', '.join(RANDOM_UNETS)} (default: sd15-random)")
    add_sweep_arguments(
        parser, sizes=(512, 768, 1024), repeats=(3, 2, 1), attention=CHUNKED,
        variants=(NONE, PORT, OURS, "ours-tile", *PRESETS.values(), FREE),
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    run_sweep(args, "results", "One call of the UNet, unmerged and merged", steps=1)
