"""``ppdiffusers-tome bench gpu``: the speed-up by presets on this machine's GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.gpu_estimate import (
    SIZES,
    TITLES,
    closest_device,
    load_estimates,
    presets_by_strength,
)  # fmt: skip
from ppdiffusers_tome.tools.bench.runner import Result, check_at_least_1, check_sizes, run_benchmark
from ppdiffusers_tome.tools.bench.variants import NONE, PRESETS
from ppdiffusers_tome.tools.bench.workloads import FLASH, PLAIN, XFORMERS, Case
from ppdiffusers_tome.tools.console.output import quiet_libraries
from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments

HELP = "Measure on this machine's GPU what each preset saves, compared with the estimate of docs/en/guides/gpu.md."
EXAMPLES = """whole calls of the denoiser with random weights in the real shapes, so nothing is downloaded: unmerged and
with every preset, which take turns after a warm-up. What does not fit into the GPU's memory is a cell of the table.
Writes gpu.md and gpu.json, and gpu.jsonl line by line: stopped, the same command resumes.

examples:
  ppdiffusers-tome bench gpu
  ppdiffusers-tome bench gpu --families sdxl --dtypes float16 --attention flash --sizes 1024
  ppdiffusers-tome bench gpu --on-cpu-as-a-check
"""
MODELS = {"sd15": "sd15-random", "sdxl": "sdxl-random", "sd3": "sd3-random"}
TINY_MODELS = {"sd15": "sd15-tiny-random", "sdxl": "sdxl-tiny-random"}  # a CPU runs these UNets
DTYPES, ATTENTIONS = ("float16", "bfloat16"), (PLAIN, XFORMERS, FLASH)
BATCH = 2  # one image with guidance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--families", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="NAME",
                        help=f"{', '.join(MODELS)} (default: all)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="PIXELS",
                        help="heights and widths of square images (default: 512 1024 2048)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, metavar="NAME",
                        help=f"{', '.join(DTYPES)} (default: both)")
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=ATTENTIONS, metavar="NAME",
                        help=f"{', '.join(ATTENTIONS)} (default: all; SD3 has {FLASH} only)")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="calls of a timed run (default: 4)")
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="timed runs of each (default: 10)")
    parser.add_argument("--on-cpu-as-a-check", action="store_true",
                        help="do all of it on the CPU with tiny models, to see that it runs; this measures no GPU")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    check_at_least_1("--steps", args.steps)
    check_at_least_1("--repeats", args.repeats)
    check_sizes(args.sizes)
    repeats = dict.fromkeys(_cases(args), args.repeats)
    gpu = None if args.on_cpu_as_a_check else _require_gpu()
    title = f"What presets save on {gpu}" if gpu else "What presets save: a check on a CPU with tiny models, of no GPU"
    run_benchmark(args, "gpu", title, repeats, [NONE, *PRESETS.values()], partial(_make_table, gpu=gpu))


def _cases(args: argparse.Namespace) -> list[Case]:
    """Return a case for every family, dtype, kind of attention and size.

    Raises:
        UserError: only SD3 was chosen, and not as it runs.
    """
    if args.on_cpu_as_a_check:
        models, dtypes, attentions, sizes = TINY_MODELS, ("float32",), (PLAIN,), (128,)
    else:
        models, dtypes, attentions, sizes = MODELS, args.dtypes, args.attention, args.sizes
    cases = [
        Case(models[family], dtype, attention, size, BATCH, args.steps)
        for family in args.families if family in models
        for dtype in dtypes
        for attention in attentions if family != "sd3" or attention == FLASH
        for size in sizes
    ]  # fmt: skip
    if not cases:
        raise UserError(f"SD3 runs with {FLASH} attention on a GPU only; add {FLASH} to --attention, or other families")
    return cases


def _require_gpu() -> str:
    with quiet_libraries():
        import paddle
    if not paddle.get_device().startswith("gpu"):
        raise UserError(
            "bench gpu needs an NVIDIA GPU and paddlepaddle-gpu, and here Paddle runs on the CPU; "
            "--on-cpu-as-a-check goes through the same steps with tiny models and measures no GPU"
        )
    return paddle.device.cuda.get_device_name()


def _make_table(results: Sequence[Result], gpu: str | None) -> Table:
    """Return a row per case, with measured and estimated speed-ups."""
    device = closest_device(gpu or "")
    table = Table(["model", "type", "attention", "size", "unmerged", *presets_by_strength()], left=4)
    for case, group in groupby(results, key=lambda result: result.case):
        by_variant = {result.variant: result for result in group}
        family = next((family for family, model in MODELS.items() if model == case.model), "")
        # The estimate is about attention that writes no scores.
        estimate = load_estimates().get((family, case.size, device)) if gpu and case.attention != PLAIN else None
        cells = []
        for name in presets_by_strength():
            result = by_variant[PRESETS[name]]
            cells.append(result.format())
            if result.speed_up is not None:
                expected = "" if estimate is None else f", estimated {estimate.speed_up(name):.2f}x for an {device}"
                cells[-1] = result.speed_up.format("{:.2f}x".format) + expected
        size, title = f"{case.size}x{case.size}", TITLES.get(family, case.model)
        table.add(title, case.dtype, case.attention, size, by_variant[NONE].format(), *cells)
    return table
