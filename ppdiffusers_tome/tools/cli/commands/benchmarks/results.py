"""``ppdiffusers-tome bench results``: the table of docs/en/results/index.md, on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.arguments import SIZE_MULTIPLE
from ppdiffusers_tome.tools.bench.attention import ATTENTIONS, CHUNKED
from ppdiffusers_tome.tools.bench.ledger import BenchLedger
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.bench.result_files import ResultFiles
from ppdiffusers_tome.tools.bench.results import MODELS, as_json, measure, plan_of
from ppdiffusers_tome.tools.bench.results_table import TITLE, Machine, notes, table
from ppdiffusers_tome.tools.cli.arguments import add_output_arguments
from ppdiffusers_tome.tools.cli.console.output import shorten_warnings
from ppdiffusers_tome.tools.cli.console.tables import Page

HELP = "Measure the table of docs/en/results/index.md here: Stable Diffusion 1.5's shape at 512, 768 and 1024."
EXAMPLES = """one call of the UNet, random weights, one row: unmerged, matched globally, in tiles, every preset,
ppdiffusers' port, and tokens dropped at no cost; with --torch-python also tomesd, compared with its own unmerged UNet.
All take turns. On 2 cores it takes less than half an hour. Writes results.md, results.json and results.png, and
results.jsonl line by line: stopped, the same command resumes where it was, and with more --repeats it adds rounds.

examples:
  ppdiffusers-tome bench results --torch-python ~/torch-env/bin/python
  ppdiffusers-tome bench results --sizes 512 --repeats 5 --attention plain --output outputs/plain
"""
SIZES, REPEATS = (512, 768, 1024), (3, 2, 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], metavar="MODEL",
                        help=f"a UNet with random weights: {', '.join(MODELS)} (default: {MODELS[0]})")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="PIXELS",
                        help="heights and widths of square pictures (default: 512 768 1024)")
    parser.add_argument("--repeats", type=int, nargs="+", default=REPEATS, metavar="N",
                        help="rounds at each of the sizes; the last counts for all that follow (default: 3 2 1)")
    parser.add_argument("--attention", choices=ATTENTIONS, default=CHUNKED, metavar="NAME",
                        help=f"{', '.join(ATTENTIONS)}, for both merged and unmerged (default: {CHUNKED}; plain "
                        "takes 20 GiB at 1024; the last two need a GPU)")
    parser.add_argument("--torch-python", type=Path, metavar="FILE",
                        help="python of an environment with torch, diffusers 0.29 and tomesd, for a row of theirs")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    plans = _plans(args)
    path = args.output / "results.jsonl"
    # The other files are made of this one, so where it is ours so are they.
    overwrite = args.overwrite or path.is_file()
    ResultFiles(args.output, "results", picture=True, overwrite=overwrite)
    with shorten_warnings(), BenchLedger(path, plans[0], overwrite=args.overwrite) as ledger:
        measure(plans, ledger, args.torch_python)
        from ppdiffusers_tome.tools.bench.results_plot import plot

        found = as_json(plans, ledger)
        here = [Machine(found)]
        page = Page(TITLE, notes(here), [table(here)])
        ResultFiles(args.output, "results", picture=True, overwrite=True).write(page, found, plot(here), found)


def _plans(args: argparse.Namespace) -> list[Plan]:
    """One for every size.

    Raises:
        UserError: a size or a number of rounds cannot be used.
    """
    sizes = list(dict.fromkeys(args.sizes))
    for size in sizes:
        if size < SIZE_MULTIPLE or size % SIZE_MULTIPLE:
            raise UserError(f"--sizes {size} must be a multiple of {SIZE_MULTIPLE}; take 512, 768 or 1024")
    if min(args.repeats) < 1:
        raise UserError(f"--repeats {min(args.repeats)} must be 1 or more")
    return [
        plan_of(args.model, args.attention, size, args.repeats[min(number, len(args.repeats) - 1)])
        for number, size in enumerate(sizes)
    ]
