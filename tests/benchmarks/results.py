"""Measure what token merging saves in a call of a denoiser.

It makes the table of docs/measured/performance/README.md, on a CPU or a GPU.

    PYTHONPATH=tests python -m benchmarks.results
    PYTHONPATH=tests python -m benchmarks.results --models sdxl-random --dtypes float16 --attention flash --sizes 1024

Whole calls with random weights in the real shapes, so nothing is downloaded: unmerged, ppdiffusers' port, this package
at --ratio, globally and in tiles, every preset, and tokens dropped at no cost. They take turns after a warm-up. On 2
cores it takes about half an hour. What does not fit into a GPU's memory is a cell of the table. Writes results.md and
results.json, and results.jsonl line by line: stopped, the same command resumes, and with more --repeats it adds rounds.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from itertools import product
from typing import Any

from benchmarks import pages
from benchmarks.random_models import RANDOM_MODELS, RANDOM_SD3, RANDOM_UNETS
from benchmarks.timing import Spread, measure_seconds, rotate
from benchmarks.variants import NONE, VARIANTS, apply_variant
from benchmarks.workloads import ATTENTIONS, CPU, FLASH, PLAIN, XFORMERS, Case, load_workload
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.output import import_quietly, warn
from ppdiffusers_tome.tools.console.tables import Table, write_page
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments
from ppdiffusers_tome.tools.generation.settings import DTYPES
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.memory import explain_shortage
from ppdiffusers_tome.tools.measure.system import describe_machine
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED, format_seconds

# On a CPU one row of the batch, as half a step with guidance already takes seconds.
_ON_CPU: dict[str, Any] = {
    "models": ["sd15-random"], "sizes": [512, 768, 1024], "dtypes": ["float32"], "attention": [CPU], "batch": 1,
    "steps": 1, "repeats": 3,
}  # fmt: skip
_ON_GPU: dict[str, Any] = {
    "models": ["sd15-random", "sdxl-random", RANDOM_SD3], "sizes": [512, 1024, 2048], "dtypes": ["float16", "bfloat16"],
    "attention": [PLAIN, XFORMERS, FLASH], "batch": 2, "steps": 4, "repeats": 10,
}  # fmt: skip
# Three halvings of the latent, and whole cells of 2x2 tokens at the coarsest level that the port merges at.
SIZE_MULTIPLE = 64
Job = tuple[str, Sequence[Any], Callable[[Sequence[Any]], Iterator[tuple[Any, Any]]]]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_arguments(argv)
    ToMeConfig(ratio=args.ratio)  # checks its range
    with import_quietly():
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


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    def describe_defaults(name: str) -> str:
        return ", ".join(f"{place} {defaults[name]}" for place, defaults in (("CPU", _ON_CPU), ("GPU", _ON_GPU)))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=RANDOM_MODELS, metavar="NAME",
                        help=f"{', '.join(RANDOM_MODELS)} ({describe_defaults('models')})")
    parser.add_argument("--sizes", type=parse_size, nargs="+", metavar="PIXELS",
                        help=f"heights and widths of square images ({describe_defaults('sizes')})")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, metavar="NAME",
                        help=f"{', '.join(DTYPES)} ({describe_defaults('dtypes')})")
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, metavar="NAME",
                        help=f"{', '.join(ATTENTIONS)} ({describe_defaults('attention')}); the last two need a GPU, "
                        f"and {RANDOM_SD3} has {FLASH} alone")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), metavar="NAME",
                        help=f"{', '.join(VARIANTS)} (default: all that the models take; {NONE} always runs)")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="of variants that are no preset (0.5)")
    for name, meaning in (("batch", "rows of the denoiser's batch, of which guidance takes two"),
                          ("steps", "calls of a timed run"), ("repeats", "rounds, in which the variants take turns")):
        parser.add_argument(f"--{name}", type=parse_count, metavar="N", help=f"{meaning} ({describe_defaults(name)})")
    add_output_arguments(parser)
    return parser.parse_args(argv)


@dataclass(frozen=True)
class Result:
    """One variant in one case.

    Attributes:
        case, variant: what was measured.
        rounds: how many rounds it was timed in.
        seconds: of a denoiser call; None where nothing was timed.
        speedup: how many times as fast as the model without merging, from the rounds in which both ran.
        out_of_memory: it did not fit.
    """

    case: Case
    variant: str
    rounds: int
    seconds: Spread | None
    speedup: Spread | None
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


def run_benchmark(args: argparse.Namespace, cases: Sequence[Case], rounds: int) -> None:
    """Measure what ``results.jsonl`` lacks, and write ``results.md`` and ``results.json`` of all it holds.

    Args:
        args: of the command, with ``variants``, ``ratio``, ``output`` and ``overwrite``.
        cases: every variant runs in each.
        rounds: in each of which the variants take turns.

    Raises:
        UserError: a file exists or cannot be written, or no case could run.
    """
    paths = pages.prepare_results(args, "results")
    names = [name for name in VARIANTS if name in (NONE, *(args.variants or VARIANTS))]
    labels = {name: f"{name} {args.ratio:g}" if VARIANTS[name].takes_ratio else name for name in names}
    machine = describe_machine()
    identity = {"variants": list(labels.values()), **machine}
    ledger = Ledger(args.output / "results.jsonl", identity, overwrite=args.overwrite)
    failed = _measure(cases, labels, args.ratio, rounds, ledger)
    cases = [case for case in cases if case not in failed]
    if not cases:
        raise UserError("; ".join(dict.fromkeys(failed.values())))
    results = [_summarize(case, rounds, labels[name], ledger) for case in cases for name in _fit(case, labels)]
    notes = [
        ", ".join(f"{name}: {value}" for name, value in machine.items()),
        f"seconds of a denoiser call: mean over the {cases[0].steps} of a run; median of the rounds (lowest to "
        "highest), in each of which all variants take turns on the same inputs",
        f"speed-up: seconds of '{NONE}' / own seconds, median over the rounds",
        *(f"{name}: {VARIANTS[name].meaning}" for name in names),
        *(f"{case.name} was not measured: {why}" for case, why in failed.items()),
    ]
    found = {"date": date.today().isoformat(), "machine": machine, "results": [*map(asdict, results)]}
    write_page(*paths, "A call of the denoiser, unmerged and merged", notes, _make_table(results), found)


def _fit(case: Case, names: Iterable[str]) -> list[str]:
    """Return the variants that a model can have."""
    return [name for name in names if case.model in RANDOM_UNETS or not VARIANTS[name].needs_unet]


def _measure(
    cases: Sequence[Case], labels: Mapping[str, str], ratio: float, rounds: int, ledger: Ledger
) -> dict[Case, str]:
    """Measure the rounds that the ledger lacks; return why cases could not run."""
    failed: dict[Case, str] = {}

    def measure_case(case: Case, keys: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        try:
            yield from _measure_rounds(case, labels, ratio, keys, ledger)
        except Exception as error:  # such as of a kernel that this GPU lacks
            failed[case] = (str(error).strip() or type(error).__name__).splitlines()[-1]
            warn(f"{case.name} was not measured: {failed[case]}")

    jobs = []
    for case in cases:
        missing = [key for key in (case.key("round", number) for number in range(rounds)) if key not in ledger]
        jobs.append((case.name, missing, partial(measure_case, case)))
    run_jobs(jobs, ledger, description="rounds")
    return failed


def run_jobs(jobs: Sequence[Job], ledger: Ledger, *, description: str) -> None:
    """Run jobs in their order, and add each result to the ledger at once.

    Args:
        jobs: each a name for the progress bar, the keys that lack a result, and a function that computes them: it
            yields each key with its result at once, and may omit keys, which the next run tries again.
        ledger: receives the results.
        description: of the results, in the plural, for the progress bar.
    """
    from tqdm import tqdm

    with tqdm(total=sum(len(keys) for _, keys, _ in jobs), desc=description, position=0, disable=None) as bar:
        for name, keys, compute in jobs:
            if keys:
                bar.set_postfix_str(name)
                for key, result in compute(keys):
                    ledger.add(key, result)
                    bar.update()


def _measure_rounds(
    case: Case, labels: Mapping[str, str], ratio: float, keys: Sequence[Any], ledger: Ledger
) -> Iterator[tuple[Any, Any]]:
    """Let the variants take turns, and drop one that runs out of memory."""
    import paddle

    free_memory()  # of the case before
    (model, run), fresh = load_workload(case), set(labels)
    fitting = [name for name in _fit(case, labels) if case.key("too large", labels[name]) not in ledger]
    for key in keys:
        seconds = {}
        for variant in rotate(fitting, key[-1]):
            try:
                with apply_variant(model, VARIANTS[variant], ratio):
                    gc.collect()
                    # The first calls set things up: on a GPU each variant's kernels are chosen; on a CPU, where a call
                    # may take a minute, one call is enough.
                    if variant in fresh:
                        run(1)
                        fresh = fresh - {variant} if paddle.get_device() != "cpu" else set()
                    seconds[labels[variant]] = measure_seconds(lambda: run(case.steps)) / case.steps
            except Exception as error:
                if explain_shortage(error) is None:
                    raise
                fitting.remove(variant)
            if variant not in fitting:  # here its tensors are no longer held by the error
                free_memory()
                yield case.key("too large", labels[variant]), True
        yield key, seconds


def _summarize(case: Case, repeats: int, label: str, ledger: Ledger) -> Result:
    keys = [case.key("round", number) for number in range(repeats)]
    rounds = [ledger[key] for key in keys if key in ledger]
    too_large = case.key("too large", label) in ledger
    timed = [] if too_large else [seconds for seconds in rounds if label in seconds]
    both = [seconds for seconds in timed if NONE in seconds]
    return Result(
        case, label, len(timed),
        Spread.from_values([seconds[label] for seconds in timed]) if timed else None,
        Spread.from_values([seconds[NONE] / seconds[label] for seconds in both]) if both else None,
        too_large,
    )  # fmt: skip


def _make_table(results: Sequence[Result]) -> Table:
    """Return a row per case and variant, with ranges."""
    table = Table(["setting", "variant", "seconds", "speed-up"], left=2)
    for result in results:
        seconds = "out of memory" if result.out_of_memory else NOT_MEASURED
        if result.seconds is not None:
            seconds = result.seconds.format(format_seconds)
        speedup = "-" if result.speedup is None else result.speedup.format("{:.2f}x".format)
        table.add(result.case.name, result.variant, seconds, speedup)
    return table


def free_memory() -> None:
    """Hand back memory that nothing uses any more."""
    import paddle

    gc.collect()
    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.empty_cache()


if __name__ == "__main__":
    pages.prepare()
    main()
