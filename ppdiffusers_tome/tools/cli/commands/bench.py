"""``ppdiffusers-tome bench``: the time of a call of a denoiser, unmerged, merged and with ppdiffusers' own port."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.random_models import RANDOM_MODELS, RANDOM_SD3
from ppdiffusers_tome.tools.bench.runner import parse_count, parse_size, run_benchmark
from ppdiffusers_tome.tools.bench.variants import NONE, VARIANTS
from ppdiffusers_tome.tools.bench.workloads import ATTENTIONS, CHUNKED, FLASH, PLAIN, XFORMERS, Case
from ppdiffusers_tome.tools.console.output import quiet_libraries
from ppdiffusers_tome.tools.console.parsing import refuse_options
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments
from ppdiffusers_tome.tools.generation.model_loader import DTYPES

HELP = "Measure what token merging saves in a call of a denoiser here, and what ppdiffusers' own port saves."
EXAMPLES = """whole calls with random weights in the real shapes, so nothing is downloaded: unmerged, ppdiffusers' port,
this package at --ratio, globally and in tiles, and every preset. They take turns after a warm-up. On 2 cores it takes
about half an hour. What does not fit into a GPU's memory is a cell of the table. Writes bench.md and bench.json, and
bench.jsonl line by line: stopped, the same command resumes, and with more --repeats it adds rounds.

  ppdiffusers-tome bench --sizes 512 --attention plain --output outputs/plain
  ppdiffusers-tome bench --models sdxl-random --dtypes float16 --attention flash --sizes 1024      # on a GPU
"""
# On a CPU one row of the batch, as half a step with guidance already takes seconds.
_ON_CPU: dict[str, Any] = {
    "models": ["sd15-random"], "sizes": [512, 768, 1024], "dtypes": ["float32"], "attention": [CHUNKED], "batch": 1,
    "steps": 1, "repeats": 3,
}  # fmt: skip
_ON_GPU: dict[str, Any] = {
    "models": ["sd15-random", "sdxl-random", RANDOM_SD3], "sizes": [512, 1024, 2048], "dtypes": ["float16", "bfloat16"],
    "attention": [PLAIN, XFORMERS, FLASH], "batch": 2, "steps": 4, "repeats": 10,
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=RANDOM_MODELS, metavar="NAME",
                        help=f"{', '.join(RANDOM_MODELS)} ({_describe_defaults('models')})")
    parser.add_argument("--sizes", type=parse_size, nargs="+", metavar="PIXELS",
                        help=f"heights and widths of square images ({_describe_defaults('sizes')})")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, metavar="NAME",
                        help=f"{', '.join(DTYPES)} ({_describe_defaults('dtypes')})")
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, metavar="NAME",
                        help=f"{', '.join(ATTENTIONS)} ({_describe_defaults('attention')}); the last two need a GPU, "
                        f"and {RANDOM_SD3} has {FLASH} alone")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), metavar="NAME",
                        help=f"{', '.join(VARIANTS)} (default: all that the models take; {NONE} always runs)")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="of variants that are no preset (0.5)")
    for name, meaning in (("batch", "rows of the denoiser's batch, of which guidance takes two"),
                          ("steps", "calls of a timed run"), ("repeats", "rounds, in which the variants take turns")):
        parser.add_argument(f"--{name}", type=parse_count, metavar="N", help=f"{meaning} ({_describe_defaults(name)})")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    ToMeConfig(ratio=args.ratio)  # checks its range
    if args.variants and not any(VARIANTS[name].takes_ratio for name in args.variants):
        refuse_options(args, ["--ratio"], f"has no effect on {' '.join(args.variants)}; add another of --variants")
    with quiet_libraries():
        import paddle

        chosen = dict(_ON_GPU if paddle.get_device().startswith("gpu") else _ON_CPU)
        chosen |= {name: value for name in chosen if (value := getattr(args, name)) is not None}
        if RANDOM_SD3 in (args.models or ()) and FLASH not in chosen["attention"]:
            raise UserError(f"{RANDOM_SD3} has {FLASH} attention alone; add {FLASH} to --attention, or omit the model")
        combined = product(*(chosen[name] for name in ("models", "dtypes", "attention", "sizes")))
        cases = [
            Case(model, dtype, attention, size, chosen["batch"], chosen["steps"])
            for model, dtype, attention, size in combined if model != RANDOM_SD3 or attention == FLASH
        ]  # fmt: skip
        run_benchmark(args, cases, chosen["repeats"])


def _describe_defaults(name: str) -> str:
    """Return the defaults of an option on a CPU and on a GPU."""
    on_cpu, on_gpu = (
        " ".join(map(str, values)) if isinstance(values := defaults[name], list) else str(values)
        for defaults in (_ON_CPU, _ON_GPU)
    )
    return f"default: {on_cpu}; on a GPU {on_gpu}"
