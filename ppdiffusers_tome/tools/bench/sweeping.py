"""``bench unet`` and ``bench pipeline``: their common arguments, and the run from those to the written tables."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import LEVELS, ToMeConfig
from ppdiffusers_tome.tools.bench.attention import ATTENTIONS, PLAIN
from ppdiffusers_tome.tools.bench.contenders import CONTENDERS
from ppdiffusers_tome.tools.bench.ledger import BenchLedger
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.drawing.arguments import add_output_arguments
from ppdiffusers_tome.tools.drawing.loading import DTYPES
from ppdiffusers_tome.tools.drawing.settings import MAX_SEED

# Three halvings of the latent, and whole cells of 2x2 tokens at the coarsest level that the port merges at.
SIZE_MULTIPLE = 64
_UNITS = {"MiB": 2**20, "GiB": 2**30, "MB": 10**6, "GB": 10**9}

ENDS = ("md", "json", "png")


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
    group.add_argument("--memory-limit", type=memory, metavar="SIZE",
                       help="say whether each fits in this much, such as 20GiB; implies --memory")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the inputs (default: 0)")
    group.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    add_output_arguments(parser)


def memory(text: str) -> int:
    """``20GiB`` -> bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)", text)
    if not found or found[2] not in _UNITS or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number with MiB, GiB, MB or GB, such as 20GiB")
    return int(float(found[1]) * _UNITS[found[2]])


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
    weighed = args.memory or args.memory_limit is not None
    if args.repeats < 0 or (args.repeats == 0 and not weighed):
        raise UserError(f"--repeats {args.repeats} times nothing; give 1 or more, or 0 together with --memory")
    if steps < 1:
        raise UserError(f"--steps {steps} must be 1 or more")
    if not 0 <= args.seed <= MAX_SEED:
        raise UserError(f"--seed {args.seed} must be from 0 to 2**62")
    return Plan(
        what=what, model=args.model, dtype=args.dtype, steps=steps, contenders=_each(args.contenders),
        ratios=_each(args.ratios), max_downsample=args.max_downsample, seed=args.seed, guidance_scale=guidance_scale,
        sizes=_each(args.sizes), batches=_each(args.batches), attentions=_each(args.attention), repeats=args.repeats,
        memory=weighed,
    )  # fmt: skip


def run_plan(plan: Plan, args: argparse.Namespace, title: str) -> None:
    """Measure what is left of a plan and write the tables and the plot; what was found stays when this is stopped.

    Raises:
        UserError: a file is in the way or cannot be written, or the model or the device does not do.
    """
    from tqdm import tqdm

    from ppdiffusers_tome.exporting.files import prepare_folder
    from ppdiffusers_tome.tools.bench.sweep import Sweep
    from ppdiffusers_tome.tools.console.output import one_line_warnings

    found_before = args.output / f"{plan.what}.jsonl"
    # The other files are made of this one, so where it is ours so are they.
    overwrite = args.overwrite or found_before.is_file()
    prepare_folder(args.output, [f"{plan.what}.{end}" for end in ENDS], overwrite=overwrite)
    with one_line_warnings(), BenchLedger(found_before, plan, overwrite=args.overwrite) as ledger:
        with tqdm(desc=plan.what, disable=None) as bar:

            def tell(text: str) -> None:
                bar.set_postfix_str(text, refresh=False)
                bar.update()

            sweep = Sweep(plan, ledger, tell)
            bar.total = sweep.num_runs
            sweep.run()
        _write(plan, ledger, args.output, title, args.memory_limit)


def _write(plan: Plan, ledger: BenchLedger, folder: Path, title: str, limit_bytes: int | None) -> None:
    from ppdiffusers_tome.exporting.files import write_whole
    from ppdiffusers_tome.tools.bench.plot import plot
    from ppdiffusers_tome.tools.bench.summary import as_json, markdown, notes, results
    from ppdiffusers_tome.tools.console.output import say
    from ppdiffusers_tome.tools.drawing.picture_files import write_picture

    on, found = ledger.on, results(plan, ledger)
    table = markdown(title, notes(plan, on, limit_bytes), plan, found, limit_bytes)
    text = json.dumps(as_json(plan, on, found, limit_bytes), indent=2, allow_nan=False) + "\n"
    paths = [folder / f"{plan.what}.{end}" for end in ENDS]
    write_whole(paths[0], lambda file: file.write(table.encode()), overwrite=True)
    write_whole(paths[1], lambda file: file.write(text.encode()), overwrite=True)
    write_picture(paths[2], plot(title, plan, found), {"plan": plan.to_dict(), "on": on}, overwrite=True)
    say(table)
    for path in paths:
        say(str(path))


def _each(values: list) -> tuple:
    """Each value once, in the order given."""
    return tuple(dict.fromkeys(values))
