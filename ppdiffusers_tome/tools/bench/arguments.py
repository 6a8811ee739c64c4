"""The arguments that benchmarks share, and the plan that ``bench unet`` and ``bench pipeline`` make of theirs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TypeVar

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import LEVELS
from ppdiffusers_tome.tools.bench.attention import ATTENTIONS, PLAIN
from ppdiffusers_tome.tools.bench.contenders import CONTENDERS
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS
from ppdiffusers_tome.tools.cli.arguments import add_output_arguments
from ppdiffusers_tome.tools.generation.model_loader import DTYPES
from ppdiffusers_tome.tools.generation.settings import check_seed
from ppdiffusers_tome.tools.measure.units import parse_bytes

# Three halvings of the latent, and whole cells of 2x2 tokens at the coarsest level that the port merges at.
SIZE_MULTIPLE = 64
T = TypeVar("T")


def add_numbers(parser: argparse._ActionsContainer, **defaults: int) -> None:
    """Options that are whole numbers and need no more words."""
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=default, metavar="N", help=f"default: {default}")


def add_ratio(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")


def add_repeats(parser: argparse._ActionsContainer, default: int, what: str = "timed runs") -> None:
    parser.add_argument("--repeats", type=int, default=default, metavar="N", help=f"{what} (default: {default})")


def add_random_unet(parser: argparse._ActionsContainer, default: str) -> None:
    parser.add_argument("--model", choices=list(RANDOM_UNETS), default=default, metavar="MODEL",
                        help=f"a UNet with random weights: {', '.join(RANDOM_UNETS)} (default: {default})")


def require_at_least(least: int, args: argparse.Namespace, *names: str) -> None:
    """Check options that are whole numbers.

    Raises:
        UserError: one is less.
    """
    for name in names:
        if getattr(args, name) < least:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)} must be {least} or more")


def add_sweep_arguments(parser: argparse.ArgumentParser, *, batch_help: str) -> None:
    """What is compared, at which sizes, and how often."""
    group = parser.add_argument_group("what is compared (every combination is measured)")
    group.add_argument("--sizes", type=int, nargs="+", default=[512], metavar="PIXELS",
                       help="heights and widths of square pictures (default: 512)")
    group.add_argument("--batches", type=int, nargs="+", default=[1], metavar="N", help=batch_help)
    group.add_argument("--ratios", type=float, nargs="+", default=[0.5], metavar="X",
                       help="shares of the tokens to merge (default: 0.5)")
    group.add_argument("--attention", nargs="+", choices=list(ATTENTIONS), default=[PLAIN], metavar="NAME",
                       help=f"{', '.join(ATTENTIONS)} (default: {PLAIN}; the last two need a GPU)")
    group.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), metavar="NAME",
                       help=f"{', '.join(CONTENDERS)} (default: all; the first always runs)")
    group.add_argument("--max-downsample", type=int, choices=LEVELS, metavar="LEVEL",
                       help="merge down to this level: 1, 2, 4 or 8 (default: the finest level only)")
    group = parser.add_argument_group("how it is measured")
    group.add_argument("--repeats", type=int, default=3, metavar="N",
                       help="timed runs of each contender, which take turns (default: 3; 0 with --memory: none)")
    group.add_argument("--memory", action="store_true", help="measure peak memory too, each in a fresh process")
    group.add_argument("--memory-limit", type=_size, metavar="SIZE",
                       help="report whether each fits into this much memory, such as 20GiB; implies --memory")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the inputs (default: 0)")
    group.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    add_output_arguments(parser)


def plan_from(args: argparse.Namespace, what: str, *, steps: int, guidance_scale: float | None = None) -> Plan:
    """Check the arguments and make a plan of them.

    Raises:
        UserError, ToMeValueError: something cannot be used; the message says what and what to do.
    """
    for size in args.sizes:
        if size < SIZE_MULTIPLE or size % SIZE_MULTIPLE:
            nearest = max(SIZE_MULTIPLE, round(size / SIZE_MULTIPLE) * SIZE_MULTIPLE)
            raise UserError(
                f"--sizes {size} must be a multiple of {SIZE_MULTIPLE}, so that every contender can run at every "
                f"level; take {nearest}"
            )
    for batch in args.batches:
        if batch < 1:
            raise UserError(f"--batches {batch} must be 1 or more")
    for ratio in args.ratios:
        if ToMeConfig(ratio=ratio).ratio == 0:
            raise UserError("--ratios 0 merges nothing; that is the contender ratio-0, which needs no ratio")
    memory = args.memory or args.memory_limit is not None
    if args.repeats < 0 or (args.repeats == 0 and not memory):
        raise UserError(f"--repeats {args.repeats} times nothing; give 1 or more, or 0 together with --memory")
    if steps < 1:
        raise UserError(f"--steps {steps} must be 1 or more")
    check_seed("--seed", args.seed)
    return Plan(
        what=what, model=args.model, dtype=args.dtype, steps=steps, contenders=_each(args.contenders),
        ratios=_each(args.ratios), max_downsample=args.max_downsample, seed=args.seed, guidance_scale=guidance_scale,
        sizes=_each(args.sizes), batches=_each(args.batches), attentions=_each(args.attention), repeats=args.repeats,
        memory=memory,
    )  # fmt: skip


def _size(text: str) -> int:
    """As argparse wants a type: its error names the option."""
    try:
        return parse_bytes(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _each(values: Iterable[T]) -> tuple[T, ...]:
    """Each value once, in the order given."""
    return tuple(dict.fromkeys(values))
