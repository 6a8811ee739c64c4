"""``ppdiffusers-tome doctor``: merging in all pipelines or one, and the environment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import NothingToMergeError, UserError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.output import print_line, quiet_libraries
from ppdiffusers_tome.tools.console.parsing import refuse_options
from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.doctor.coverage import inspect_installed, make_table
from ppdiffusers_tome.tools.doctor.environment import (
    describe_environment,
    find_problems,
    format_report,
    never_tested,
)
from ppdiffusers_tome.tools.doctor.imports import try_imports
from ppdiffusers_tome.tools.generation import model_loader
from ppdiffusers_tome.tools.generation.arguments import (
    add_precision_arguments,
    add_size_arguments,
    add_tome_arguments,
    add_trust_argument,
)
from ppdiffusers_tome.tools.generation.memory import check_memory
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.generation.settings import check_sizes, parse_tome_config, refuse_without_merging
from ppdiffusers_tome.tools.measure.system import get_device_name
from ppdiffusers_tome.tools.measure.units import format_bytes

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.doctor.estimate import Estimate

HELP = "Say what merges in every pipeline, or in one model and what that saves here; or what is installed."
EXAMPLES = """without --model: a table of every pipeline that ppdiffusers exports.
with --model: the tokens at every level, how many merge, the memory that an image needs, computed from shapes, and a
call of the denoiser timed on this machine, merged and unmerged.
with --environment: versions, devices and memory, for a bug report, and every merging method run on the
device. It names no users or machines, and also tells why Paddle or ppdiffusers cannot be imported.

  ppdiffusers-tome doctor --model photographs --ratio 0.5
  ppdiffusers-tome doctor --model runwayml/stable-diffusion-v1-5 --height 768 --width 768 --dtype float16 --xformers
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--environment", action="store_true", help="what a bug report needs")
    what.add_argument("--model", metavar="MODEL", help="a pipeline's folder or a hub name; in a clone photographs, ...")
    group = parser.add_argument_group("with --model")
    add_trust_argument(group)
    add_size_arguments(group)
    add_precision_arguments(group)
    add_tome_arguments(parser, ratio=True)


def run(args: argparse.Namespace) -> None:
    if args.model is None:
        others = args.given - {"--environment", "--no-keep-memory"}
        refuse_options(args, sorted(others), "is for --model; name a model, too")
    if args.environment:
        _print_environment()
    elif args.model is None:
        _print_coverage()
    else:
        _print_estimates(args)


def _print_environment() -> None:
    # At once, as importing takes a while. Not by ``print_line``, whose library may be what is broken.
    print(format_report(describe_environment()), flush=True)
    imports = {}
    for name, result in try_imports():
        imports[name] = result
        print(format_report({name: result}), flush=True)  # what comes next may end the process
    print("", *find_problems(imports), sep="\n")


def _print_coverage() -> None:
    with quiet_libraries():
        import ppdiffusers.pipelines

        make_table(inspect_installed(ppdiffusers.pipelines)).print()
        if warning := never_tested(ppdiffusers.__version__):
            print_line(f"\n{warning}")


def _print_estimates(args: argparse.Namespace) -> None:
    check_sizes(args)
    source = find_model(args.model, trusts_code=args.trust_model_code)
    config = parse_tome_config(args, args.ratio)
    refuse_without_merging(args, [config])
    efficient = args.xformers or args.cpu_kernels
    check_memory(source.folder, ToMeConfig(0.0), args.height, args.width, rows=1, cpu_kernels=efficient)
    attention = "xformers attention" if args.xformers else "CPU kernels" if args.cpu_kernels else "plain attention"
    with quiet_libraries():
        from ppdiffusers_tome.api import apply_tome
        from ppdiffusers_tome.tools.doctor.estimate import compute_memory, estimate_merging, find_latent_size

        model_loader.check_device(args.dtype, xformers=args.xformers)
        pipe = model_loader.load_pipeline(source, dtype=args.dtype, any_kind=True)
        pipe.set_progress_bar_config(disable=True)
        model_loader.set_attention(pipe, xformers=args.xformers, cpu=args.cpu_kernels)
        latent, scale = find_latent_size(pipe, args.height, args.width)
        height, width = latent[0] * scale, latent[1] * scale
        levels = estimate_merging(pipe, config, *latent)
        print_line(
            f"{source.label}: {type(pipe).__name__}, {height}x{width}, {config.summary}, {args.dtype}, {attention}, "
            f"on {get_device_name()}"
        )
        if not levels:
            try:
                apply_tome(pipe)
            except NothingToMergeError as error:
                print_line(str(error))
            return
        table = Table(("denoiser", "level", "grid", "blocks", "tokens that attention sees"), left=5)
        for each in levels:
            tokens = each.reason or f"{each.grid.num_tokens} -> {each.grid.num_tokens - each.num_merged}"
            table.add(each.part or "model", each.level, each.grid, each.num_blocks, tokens)
        table.print()
        table = Table(("memory of an image, computed, at least", "unmerged", "merged"))
        for name, *sizes in compute_memory(pipe, levels, config, height, width):
            table.add(name, *map(format_bytes, sizes))
        table.print()
        merging = [each for each in levels if each.reason is None]
        if merging:
            print_line(_describe_gain(pipe, merging, config, height, width))
        else:
            print_line("Nothing merges at this size and ratio; the table says why. A larger one has more to merge.")
        if config.cache:
            print_line("The cache over steps is not in these numbers, neither its seconds nor its memory.")


def _describe_gain(pipe: Any, merging: Sequence[Estimate], config: ToMeConfig, height: int, width: int) -> str:
    """Time a denoiser call, or explain why not."""
    from ppdiffusers_tome.tools.doctor.estimate import time_denoiser

    part = max(merging, key=lambda each: each.num_blocks).part
    try:
        unmerged, merged = time_denoiser(pipe, part, config, height, width)
    except UserError as error:
        return f"Tokens merge. The gain was not timed: {error}."
    times = f"a whole call of {part} takes {merged:.3f} s for an image instead of {unmerged:.3f} s"
    if merged >= unmerged:
        cheaper = ", or make matching cheaper with --tile 16 --reuse-steps 4"
        remedy = cheaper if METHODS[config.method].compares else ""
        return f"Expect no speed-up at this size: {times}. Generate larger images{remedy}."
    return (
        f"Expect a speed-up: {times}, {unmerged / merged:.2f} times as fast, in the steps that merge most. The rest of "
        "the image takes as long as before."
    )
