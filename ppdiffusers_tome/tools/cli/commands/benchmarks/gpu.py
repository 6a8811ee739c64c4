"""``ppdiffusers-tome bench gpu``: the speed-up by presets on this machine's GPU."""

from __future__ import annotations

import argparse
from functools import partial

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.gpu_estimate import SIZES, closest_device, load_estimates
from ppdiffusers_tome.tools.bench.runner import parse_count, parse_size, run_benchmark
from ppdiffusers_tome.tools.bench.variants import NONE, PRESETS
from ppdiffusers_tome.tools.bench.workloads import FLASH, PLAIN, XFORMERS, Case
from ppdiffusers_tome.tools.console.output import quiet_libraries
from ppdiffusers_tome.tools.console.parsing import refuse_options
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
    parser.add_argument("--families", nargs="+", choices=list(MODELS), metavar="NAME",
                        help=f"{', '.join(MODELS)} (default: all)")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=SIZES, metavar="PIXELS",
                        help="heights and widths of square images (default: 512 1024 2048)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, metavar="NAME",
                        help=f"{', '.join(DTYPES)} (default: both)")
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=ATTENTIONS, metavar="NAME",
                        help=f"{', '.join(ATTENTIONS)} (default: all; SD3 has {FLASH} only)")
    parser.add_argument("--steps", type=parse_count, default=4, metavar="N", help="calls of a timed run (default: 4)")
    parser.add_argument("--repeats", type=parse_count, default=10, metavar="N",
                        help="timed runs of each (default: 10)")
    parser.add_argument("--on-cpu-as-a-check", action="store_true",
                        help="do all of it on the CPU with tiny models, to see that it runs; this measures no GPU")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    cases, title = _list_cases(args), "What presets save: a check on a CPU with tiny models, of no GPU"
    estimate = None
    if not args.on_cpu_as_a_check:
        gpu = _require_gpu()
        title, estimate = f"What presets save on {gpu}", partial(_estimate, closest_device(gpu))
    run_benchmark(args, "gpu", title, dict.fromkeys(cases, args.repeats), [NONE, *PRESETS.values()], estimate)


def _list_cases(args: argparse.Namespace) -> list[Case]:
    """List a case for every family, dtype, kind of attention and size.

    Raises:
        UserError: SD3 was chosen, and not as it runs; or a model that the check on a CPU lacks.
    """
    if args.on_cpu_as_a_check:
        refuse_options(args, ("--sizes", "--dtypes", "--attention"), "is of a GPU; omit --on-cpu-as-a-check")
        models, dtypes, attentions, sizes = TINY_MODELS, ("float32",), (PLAIN,), (128,)
    else:
        models, dtypes, attentions, sizes = MODELS, args.dtypes, args.attention, args.sizes
    families = args.families or list(models)
    if not models.keys() >= {*families}:
        raise UserError(f"--families: the check on a CPU has {', '.join(models)} alone; give some of these")
    if args.families and "sd3" in families and FLASH not in attentions:
        raise UserError(f"SD3 runs with {FLASH} attention alone; add {FLASH} to --attention, or give other --families")
    return [
        Case(models[family], dtype, attention, size, BATCH, args.steps)
        for family in families
        for dtype in dtypes
        for attention in attentions if family != "sd3" or attention == FLASH
        for size in sizes
    ]  # fmt: skip


def _require_gpu() -> str:
    with quiet_libraries():
        import paddle
    if not paddle.get_device().startswith("gpu"):
        raise UserError(
            "bench gpu needs an NVIDIA GPU and paddlepaddle-gpu, and here Paddle runs on the CPU; "
            "--on-cpu-as-a-check goes through the same steps with tiny models and measures no GPU"
        )
    return paddle.device.cuda.get_device_name()


def _estimate(device: str, case: Case, variant: str) -> str:
    """Return the estimated speed-up, which is about attention that writes no scores."""
    family = next(family for family, model in MODELS.items() if model == case.model)
    found = load_estimates().get((family, case.size, device))
    if found is None or case.attention == PLAIN or variant == NONE:
        return ""
    return f"{found[variant.removeprefix('preset-')]:.2f}x for an {device}"
