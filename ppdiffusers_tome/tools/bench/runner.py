"""The runner of benchmarks: variants take turns, and a stopped run resumes."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from itertools import product
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.variants import NONE, VARIANTS, label_variants, split_label, variant_applied
from ppdiffusers_tome.tools.bench.workloads import ATTENTIONS, PLAIN, Case, load_workload
from ppdiffusers_tome.tools.console.output import quiet_libraries, warn
from ppdiffusers_tome.tools.console.parsing import refuse_options
from ppdiffusers_tome.tools.console.tables import Page, Table
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments
from ppdiffusers_tome.tools.generation.model_loader import DTYPES
from ppdiffusers_tome.tools.measure.ledger import Ledger, prepare_results, run_jobs
from ppdiffusers_tome.tools.measure.out_of_memory import free_memory, is_out_of_memory
from ppdiffusers_tome.tools.measure.stats import Spread
from ppdiffusers_tome.tools.measure.system import describe_machine
from ppdiffusers_tome.tools.measure.timing import measure_seconds, rotate
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED, format_seconds

# Three halvings of the latent, and whole cells of 2x2 tokens at the coarsest level that the port merges at.
SIZE_MULTIPLE = 64


@dataclass(frozen=True)
class Result:
    """One variant in one case.

    Attributes:
        case, variant: what was measured.
        rounds: how many rounds it was timed in.
        seconds: of a denoiser call, or of an image; None where nothing was timed.
        speed_up: how many times as fast as the model without merging, from the rounds in which both ran.
        out_of_memory: it did not fit.
    """

    case: Case
    variant: str
    rounds: int
    seconds: Spread | None
    speed_up: Spread | None
    out_of_memory: bool


def parse_count(text: str) -> int:
    """Read a whole number, 1 or more, as the type of an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def parse_size(text: str) -> int:
    """Read a size in pixels at which every variant can run at every level."""
    size = parse_count(text)
    if size % SIZE_MULTIPLE:
        nearest = max(SIZE_MULTIPLE, round(size / SIZE_MULTIPLE) * SIZE_MULTIPLE)
        raise argparse.ArgumentTypeError(f"{text!r} must be a multiple of {SIZE_MULTIPLE}; take {nearest}")
    return size


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
    group.add_argument("--sizes", type=parse_size, nargs="+", default=sizes, metavar="PIXELS",
                       help=f"heights and widths of square images (default: {_join(sizes)})")
    group.add_argument("--batches", type=parse_count, nargs="+", default=[1], metavar="N",
                       help="images of a call, or rows of a denoiser's batch, of which guidance takes two (default: 1)")
    group.add_argument("--ratios", type=float, nargs="+", default=[0.5], metavar="X",
                       help="fractions of the tokens to merge (default: 0.5)")
    group.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=[attention], metavar="NAME",
                       help=f"{', '.join(ATTENTIONS)} (default: {attention}; the last two need a GPU)")
    group.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=variants, metavar="NAME",
                       help=f"{', '.join(VARIANTS)} (default: {_join(variants)}; {NONE} always runs)")
    group.add_argument("--repeats", type=parse_count, nargs="+", default=repeats, metavar="N",
                       help="rounds at each of the sizes, in which the variants take turns; the last number counts for "
                       f"all sizes that follow (default: {_join(repeats)})")
    group.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    add_output_arguments(parser)


def run_sweep(args: argparse.Namespace, name: str, title: str, *, steps: int) -> None:
    """Measure every combination of ``add_sweep_arguments`` with ``args.model``; see ``run_benchmark``."""
    for ratio in args.ratios:
        ToMeConfig(ratio=ratio)  # checks its range
    if not any(VARIANTS[name].takes_ratio for name in args.variants):
        refuse_options(args, ["--ratios"], f"has no effect on {_join(args.variants)}; add another of --variants")
    if "--repeats" in args.given and len(args.repeats) > len(args.sizes):
        raise UserError(f"--repeats has {len(args.repeats)} numbers for {len(args.sizes)} --sizes; give one a size")
    trusts_code = getattr(args, "trust_model_code", False)  # of a model that is loaded
    repeats = {
        Case(args.model, args.dtype, attention, size, batch, steps, trusts_code):
        args.repeats[min(number, len(args.repeats) - 1)]
        for (number, size), batch, attention in product(enumerate(args.sizes), args.batches, args.attention)
    }
    run_benchmark(args, name, title, repeats, label_variants(args.variants, args.ratios))


def run_benchmark(
    args: argparse.Namespace, name: str, title: str, repeats: Mapping[Case, int], variants: Sequence[str],
    estimate: Callable[[Case, str], str] | None = None,
) -> None:  # fmt: skip
    """Measure what ``name.jsonl`` lacks, and write ``name.md`` and ``name.json`` of all it holds.

    Args:
        args: with ``output`` and ``overwrite``.
        name: of the files, which must not exist unless they are of an earlier run.
        title: of the page.
        repeats: rounds of each case.
        variants: labels of all that are compared.
        estimate: returns the estimated speed-up of a case and variant, for a column of the table.

    Raises:
        UserError: a file exists or cannot be written, or no case could run.
    """
    paths = prepare_results(args, name)
    with quiet_libraries():
        machine = describe_machine()
        identity = {"name": name, "variants": variants, **machine}
        with Ledger(args.output / f"{name}.jsonl", identity, overwrite=args.overwrite) as ledger:
            failed = _measure(repeats, variants, ledger)
        cases = [case for case in repeats if case not in failed]
        if not cases:
            raise UserError("; ".join(dict.fromkeys(failed.values())))
        results = [_summarize(case, repeats[case], variant, ledger) for case in cases for variant in variants]
        notes = _make_notes(results, machine)
        notes += [f"{case.name} was not measured: {why}" for case, why in failed.items()]
        found = {"date": date.today().isoformat(), "machine": machine, "results": [*map(asdict, results)]}
        Page(title, notes, [_make_table(results, estimate)]).write(paths, found)


def _measure(repeats: Mapping[Case, int], variants: Sequence[str], ledger: Ledger) -> dict[Case, str]:
    """Measure the rounds that the ledger lacks; return why cases could not run."""
    failed: dict[Case, str] = {}

    def measure_case(case: Case, keys: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        try:
            yield from _measure_rounds(case, variants, keys, ledger)
        except Exception as error:  # such as of a kernel that this GPU lacks
            failed[case] = (str(error).strip() or type(error).__name__).splitlines()[-1]
            warn(f"{case.name} was not measured: {failed[case]}")

    jobs = []
    for case, rounds in repeats.items():
        missing = [key for key in (case.key("round", number) for number in range(rounds)) if key not in ledger]
        jobs.append((case.name, missing, partial(measure_case, case)))
    run_jobs(jobs, ledger, description="rounds")
    return failed


def _measure_rounds(
    case: Case, variants: Sequence[str], keys: Sequence[Any], ledger: Ledger
) -> Iterator[tuple[Any, Any]]:
    """Let the variants take turns, and drop one that runs out of memory."""
    import paddle

    free_memory()  # of the case before
    (model_or_pipe, run), fresh = load_workload(case), set(variants)
    units = case.batch if case.is_pipeline else case.steps  # images, or denoiser calls, of a run
    fitting = [variant for variant in variants if case.key("too large", variant) not in ledger]
    for key in keys:
        seconds = {}
        for variant in rotate(fitting, key[-1]):
            try:
                with variant_applied(model_or_pipe, variant):
                    gc.collect()
                    # The first calls set things up: on a GPU each variant's kernels are chosen; on a CPU, where a call
                    # may take a minute, one call is enough.
                    if variant in fresh:
                        run(1)
                        fresh = fresh - {variant} if paddle.get_device() != "cpu" else set()
                    seconds[variant] = measure_seconds(lambda: run(case.steps)) / units
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                fitting.remove(variant)
            if variant not in fitting:  # here its tensors are no longer held by the error
                free_memory()
                yield case.key("too large", variant), True
        yield key, seconds


def _summarize(case: Case, repeats: int, variant: str, ledger: Ledger) -> Result:
    rounds = [ledger.get(case.key("round", number), {}) for number in range(repeats)]
    too_large = case.key("too large", variant) in ledger
    timed = [] if too_large else [seconds for seconds in rounds if variant in seconds]
    both = [seconds for seconds in timed if NONE in seconds]
    return Result(
        case, variant, len(timed),
        Spread.from_values([seconds[variant] for seconds in timed]) if timed else None,
        Spread.from_values([seconds[NONE] / seconds[variant] for seconds in both]) if both else None,
        too_large,
    )  # fmt: skip


def _make_notes(results: Sequence[Result], machine: Mapping[str, Any]) -> list[str]:
    """Return notes that explain the numbers and how to repeat the run."""
    case = results[0].case
    unit, divided = ("an image", ", divided by the batch") if case.is_pipeline else ("a denoiser call", "")
    names = dict.fromkeys(split_label(result.variant)[0] for result in results)
    return [
        ", ".join(f"{name}: {value}" for name, value in machine.items()),
        f"seconds of {unit}: mean over the {case.steps} steps of a run{divided}; median of the rounds (lowest to "
        "highest), in each of which all variants take turns on the same inputs",
        f"speed-up: seconds of '{NONE}' / own seconds, median over the rounds",
        *(f"{name}: {VARIANTS[name].meaning}" for name in names),
    ]


def _make_table(results: Sequence[Result], estimate: Callable[[Case, str], str] | None) -> Table:
    """Return a row per case and variant, with ranges."""
    table = Table(["setting", "variant", "seconds", "speed-up", *(["estimated"] if estimate else [])], left=2)
    for result in results:
        seconds = "out of memory" if result.out_of_memory else NOT_MEASURED
        if result.seconds is not None:
            seconds = result.seconds.format(format_seconds)
        speed_up = "-" if result.speed_up is None else result.speed_up.format("{:.2f}x".format)
        estimated = [estimate(result.case, result.variant)] if estimate else []
        table.add(result.case.name, result.variant, seconds, speed_up, *estimated)
    return table


def _join(values: Sequence[object]) -> str:
    return " ".join(map(str, values))
