"""A benchmark of all combinations of sizes, batches and kinds of attention."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from itertools import product
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.variants import NONE, VARIANTS, label_variants
from ppdiffusers_tome.tools.bench.workloads import ATTENTIONS, PLAIN, Case
from ppdiffusers_tome.tools.console.tables import Page, Table
from ppdiffusers_tome.tools.files import prepare_folder, write_json, write_text
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments
from ppdiffusers_tome.tools.generation.model_loader import DTYPES
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.units import parse_bytes

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.bench.summary import Result

# Three halvings of the latent, and whole cells of 2x2 tokens at the coarsest level that the port merges at.
SIZE_MULTIPLE = 64


def add_sweep_arguments(
    parser: argparse.ArgumentParser,
    *,
    sizes: Sequence[int] = (512,),
    repeats: Sequence[int] = (3,),
    attention: str = PLAIN,
    variants: Sequence[str] = tuple(VARIANTS),
) -> None:
    """Add what is compared, at which sizes, and how often."""
    group = parser.add_argument_group("what is compared (every combination is measured)")
    group.add_argument("--sizes", type=int, nargs="+", default=sizes, metavar="PIXELS",
                       help=f"heights and widths of square images (default: {_join(sizes)})")
    group.add_argument("--batches", type=int, nargs="+", default=[1], metavar="N",
                       help="images of a call, or rows of a denoiser's batch, of which guidance takes two (default: 1)")
    group.add_argument("--ratios", type=float, nargs="+", default=[0.5], metavar="X",
                       help="fractions of the tokens to merge (default: 0.5)")
    group.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=[attention], metavar="NAME",
                       help=f"{', '.join(ATTENTIONS)} (default: {attention}; the last two need a GPU)")
    group.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=variants, metavar="NAME",
                       help=f"{', '.join(VARIANTS)} (default: {_join(variants)}; {NONE} always runs)")
    group = parser.add_argument_group("how it is measured")
    group.add_argument("--repeats", type=int, nargs="+", default=repeats, metavar="N",
                       help="rounds at each of the sizes, in which the variants take turns; the last number counts for "
                       f"all sizes that follow (default: {_join(repeats)}; 0 with --memory: none)")
    group.add_argument("--memory", action="store_true", help="measure peak memory too, each in a fresh process")
    group.add_argument("--memory-limit", metavar="SIZE",
                       help="report whether each fits into this much memory, such as 20GiB; implies --memory")
    group.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    add_output_arguments(parser)


def run_sweep(
    args: argparse.Namespace, name: str, title: str, what: str, *, steps: int, guidance_scale: float | None = None
) -> None:
    """Measure every combination, and write the tables and the plot.

    Args:
        args: as ``add_sweep_arguments`` defines them, and ``model``.
        name: of the files.
        title: of the page.
        what, steps, guidance_scale: as in ``Case``.

    Raises:
        UserError, ToMeValueError: an argument cannot be used, a file exists or cannot be written, or nothing could run.
    """
    limit = None if args.memory_limit is None else parse_bytes(args.memory_limit, "--memory-limit")
    memory = args.memory or limit is not None
    check_sizes(args.sizes)
    check_at_least(1, "--batches", *args.batches)
    check_at_least(0 if memory else 1, "--repeats", *args.repeats)
    check_at_least(1, "--steps", steps)
    for ratio in args.ratios:
        if ToMeConfig(ratio=ratio).ratio == 0:
            raise UserError("--ratios 0 merges nothing; that is the variant ratio-0, which needs no ratio")
    repeats = {
        Case(what, args.model, args.dtype, attention, size, batch, steps, guidance_scale):
        args.repeats[min(number, len(args.repeats) - 1)]
        for (number, size), batch, attention in product(enumerate(args.sizes), args.batches, args.attention)
    }  # fmt: skip
    variants = label_variants(args.variants, args.ratios)

    def make_limited_table(results: Sequence[Result]) -> Table:
        from ppdiffusers_tome.tools.bench.summary import make_table

        return make_table(results, limit)

    run_benchmark(args, name, title, repeats, variants, make_limited_table, memory=memory)


def run_benchmark(
    args: argparse.Namespace,
    name: str,
    title: str,
    repeats: Mapping[Case, int],
    variants: Sequence[str],
    make_table: Callable[[Sequence[Result]], Table],
    *,
    memory: bool = False,
) -> None:
    """Measure what ``name.jsonl`` lacks, and write ``name.md``, ``name.json`` and ``name.png`` of all it holds.

    Args:
        args: with ``output`` and ``overwrite``.
        name: of the files, which must not exist unless they are of an earlier run.
        title: of the page.
        repeats: rounds of each case.
        variants: labels of all that are compared.
        make_table: returns the table of the page.
        memory: whether peak memory is measured as well.

    Raises:
        UserError: a file exists or cannot be written, or no case could run.
    """
    findings, overwrite = args.output / f"{name}.jsonl", args.overwrite
    names = [f"{name}.{ending}" for ending in ("md", "json", "png")]
    # The other files are made of the findings, so they may be replaced where these exist.
    page_file, json_file, plot_file = prepare_folder(args.output, names, overwrite=overwrite or findings.is_file())
    with Ledger(findings, {"name": name, "variants": variants}, overwrite=overwrite) as ledger:
        from ppdiffusers_tome.tools.bench.plots import plot_results
        from ppdiffusers_tome.tools.bench.runner import Runner
        from ppdiffusers_tome.tools.bench.summary import make_notes, summarize
        from ppdiffusers_tome.tools.images import write_image

        runner = Runner(ledger, variants)
        runner.run(repeats, memory=memory)
        cases = [case for case in repeats if case not in runner.failed]
        if not cases:
            raise UserError("; ".join(dict.fromkeys(runner.failed.values())))
        results = [result for case in cases for result in summarize(case, repeats[case], variants, ledger)]
        notes = make_notes(results, ledger.machine)
        notes += [f"{case.model}, {case.name} was not measured: {why}" for case, why in runner.failed.items()]
        page = Page(title, notes, [make_table(results)])
        found = {"date": date.today().isoformat(), "machine": ledger.machine, "results": [*map(asdict, results)]}
        write_text(page_file, page.markdown(), overwrite=True)
        write_json(json_file, found, overwrite=True)
        write_image(plot_file, plot_results(title, results), {"machine": ledger.machine}, overwrite=True)
        page.print([page_file, json_file, plot_file])


def check_sizes(sizes: Sequence[int]) -> None:
    """Check that every variant can run at every level of these sizes.

    Raises:
        UserError: one cannot.
    """
    for size in sizes:
        if size < SIZE_MULTIPLE or size % SIZE_MULTIPLE:
            nearest = max(SIZE_MULTIPLE, round(size / SIZE_MULTIPLE) * SIZE_MULTIPLE)
            raise UserError(f"--sizes {size} must be a multiple of {SIZE_MULTIPLE}; take {nearest}")


def check_at_least(minimum: int, option: str, *values: int) -> None:
    """Check whole numbers of an option.

    Raises:
        UserError: one is less than the minimum.
    """
    for value in values:
        if value < minimum:
            raise UserError(f"{option} {value} must be {minimum} or more")


def _join(values: Sequence[object]) -> str:
    return " ".join(map(str, values))
