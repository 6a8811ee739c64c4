"""``ppdiffusers-tome bench gpu``: what every preset saves on this machine's GPU, compared with the estimate."""

from __future__ import annotations

import argparse
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.arguments import SIZE_MULTIPLE, add_numbers, add_repeats, require_at_least
from ppdiffusers_tome.tools.bench.gpu.estimate import listed_device
from ppdiffusers_tome.tools.bench.gpu.families import SIZES
from ppdiffusers_tome.tools.bench.gpu.measured import FUSED, Finding, measure, table
from ppdiffusers_tome.tools.bench.gpu.subjects import FLASH, MODELS, TINY_MODELS, gpu_name, on_cpu, on_gpu, plan_of
from ppdiffusers_tome.tools.bench.own_process import in_own_process
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.bench.result_files import ResultFiles, described
from ppdiffusers_tome.tools.bench.summary import as_json
from ppdiffusers_tome.tools.cli.arguments import add_output_arguments
from ppdiffusers_tome.tools.cli.console.output import shorten_warnings
from ppdiffusers_tome.tools.cli.console.tables import Page

HELP = "Measure on this machine's GPU what each preset saves, compared with the estimate of docs/en/guides/gpu.md."
EXAMPLES = """whole calls of the denoiser with random weights in the real shapes, so nothing is downloaded: unmerged and
with every preset, which take turns, timed by CUDA events after a warm-up. What does not fit into the GPU's memory is a
cell of the table. Writes gpu.md and gpu.json, and gpu-*.jsonl line by line: stopped, the same command resumes where it
was.

examples:
  ppdiffusers-tome bench gpu
  ppdiffusers-tome bench gpu --families sdxl --dtypes float16 --attention flash --sizes 1024
  ppdiffusers-tome bench gpu --on-cpu-as-a-check
"""
PLAIN = "plain"
DTYPES, ATTENTIONS = ("float16", "bfloat16"), (PLAIN, *FUSED)
CHECKED = {"sizes": (128,), "dtypes": ("float32",), "attention": (PLAIN,)}
TITLE = "What presets save on {}"
CHECK_TITLE = "A check of bench gpu on a CPU: tiny models, and nothing about any GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--families", nargs="+", choices=list(MODELS), metavar="NAME",
                        help=f"{', '.join(MODELS)} (default: all)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="PIXELS",
                        help="heights and widths of square pictures (default: 512 1024 2048)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, metavar="NAME",
                        help=f"{', '.join(DTYPES)} (default: both)")
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=ATTENTIONS, metavar="NAME",
                        help=f"{', '.join(ATTENTIONS)} (default: all; SD3 has {FLASH} only)")
    add_numbers(parser, steps=4)
    add_repeats(parser, 10, "timed runs of each, of that many calls")
    parser.add_argument("--on-cpu-as-a-check", action="store_true",
                        help="go through it all on the CPU with tiny models, to see that it runs; measures no GPU")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    require_at_least(1, args, "steps", "repeats")
    plans = _plans(args)
    for size in args.sizes:
        if size < SIZE_MULTIPLE or size % SIZE_MULTIPLE:
            raise UserError(f"--sizes {size} must be a multiple of {SIZE_MULTIPLE}; take 512, 1024 or 2048")
    check = args.on_cpu_as_a_check
    gpu = None if check else _gpu()
    begun = any(args.output.glob("gpu-*.jsonl"))  # the other files are made of these
    files = ResultFiles(args.output, "gpu", overwrite=args.overwrite or begun)
    with shorten_warnings():
        findings = measure(plans, args.output, on_cpu if check else on_gpu, overwrite=args.overwrite)
        files.write(_page(findings, gpu), {"findings": [_as_json(each) for each in findings]})


def _gpu() -> str:
    """The name of the GPU.

    Raises:
        UserError: there is none that Paddle runs on.
    """
    name = next(iter(in_own_process(gpu_name)))
    if name is None:
        raise UserError(
            "bench gpu needs an NVIDIA GPU and paddlepaddle-gpu, and here Paddle runs on the CPU; "
            "--on-cpu-as-a-check goes through the same steps with tiny models and measures no GPU"
        )
    return name


def _plans(args: argparse.Namespace) -> list[tuple[str, Plan]]:
    """One for every family, type and kind of attention.

    Raises:
        UserError: only SD3 was asked for, and not as it runs.
    """
    asked: dict[str, Any] = CHECKED if args.on_cpu_as_a_check else vars(args)
    models = TINY_MODELS if args.on_cpu_as_a_check else MODELS
    plans = [
        (family, plan_of(family, model, dtype, attention, tuple(asked["sizes"]), args.steps, args.repeats))
        for family, model in models.items() if family in (args.families or models)
        for dtype in dict.fromkeys(asked["dtypes"])
        for attention in dict.fromkeys(asked["attention"])
        if family != "sd3" or attention == FLASH
    ]  # fmt: skip
    if not plans:
        raise UserError(f"SD3 runs with {FLASH} attention on a GPU only; add {FLASH} to --attention, or other families")
    return plans


def _page(findings: list[Finding], gpu: str | None) -> Page:
    device = None if gpu is None else listed_device(gpu)
    plan = findings[0].plan
    on = next((each.on for each in findings if each.on), {})
    notes = [
        described({name: value for name, value in on.items() if name != "memory"}),
        f"one call of the denoiser on {plan.batches[0]} rows, one picture with guidance, and random weights; mean of "
        f"{plan.steps} calls, median of {plan.repeats} rounds (lowest to highest) after a warm-up, in each of which "
        "the unmerged model and all presets take turns",
        "speed-up: seconds unmerged / seconds with the preset, round by round",
    ]
    if device is not None:
        roofline = "the roofline of docs/en/results/gpu-estimate.md"
        notes.append(f"estimated: for the {device} with fused attention, by {roofline}")
    notes += [f"{each.name} was not measured: {each.failed}" for each in findings if each.failed]
    title = CHECK_TITLE if gpu is None else TITLE.format(gpu)
    return Page(title, notes, [table(findings, device)])


def _as_json(finding: Finding) -> dict[str, Any]:
    content = as_json(finding.plan, finding.on, finding.results, None)
    return {"family": finding.family, "failed": finding.failed, **content}
