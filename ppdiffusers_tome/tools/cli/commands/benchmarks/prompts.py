"""``ppdiffusers-tome bench prompts``: what very many prompts take of time, memory and folders; a simulation."""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.bench.arguments import add_numbers, require_at_least
from ppdiffusers_tome.tools.bench.result_files import ResultFiles, described
from ppdiffusers_tome.tools.cli.console.results import Page
from ppdiffusers_tome.tools.cli.console.tables import Table
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments
from ppdiffusers_tome.tools.measure.machine import processor
from ppdiffusers_tome.tools.measure.units import format_bytes

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.batch.run import Run
    from ppdiffusers_tome.tools.batch.simulation import Report

HELP = "Simulate generate --prompts on very many lines and ranks; nothing is drawn."
EXAMPLES = """a simulation: squares of one colour stand in for the model's pictures, nothing is flushed to the disk, no
group of processes is made, and of the ranks a few run at a time. All else is the real thing: reading, dealing, writing,
gathering, and resuming after all ranks were killed. A million lines take a quarter of an hour on 2 cores, and 5 GB
below --output that are removed again. Writes prompts.md and prompts.json.

examples:
  ppdiffusers-tome bench prompts
  ppdiffusers-tome bench prompts --lines 20000 --ranks 8 --start-lines 100000
"""


@dataclass(frozen=True)
class Row:
    """What ranks took for something.

    Attributes:
        what: they did.
        seconds: of the slowest.
        peak_bytes: the most memory that any of them had by then, Python's included; None where it was not measured.
        pictures: how many were in the folder then; None where nobody counted.
    """

    what: str
    seconds: float
    peak_bytes: int | None
    pictures: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, lines=1_000_000, ranks=64, at_once=2, batch_size=4, pictures_per_folder=5000)
    parser.add_argument("--start-lines", type=int, default=10_000_000, metavar="N",
                        help="of the file that one rank only starts on (default: 10000000)")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    names = ("lines", "ranks", "at_once", "batch_size", "pictures_per_folder", "start_lines")
    require_at_least(1, args, *names)
    from tqdm import tqdm

    files = ResultFiles(args.output, "prompts", overwrite=args.overwrite)
    most_files: list[int] = []
    with tempfile.TemporaryDirectory(prefix="simulated-", dir=args.output) as folder:
        rows = list(tqdm(_rows(args, Path(folder), most_files), total=8, desc="measured", disable=None))
    settings = {name: getattr(args, name) for name in names}
    about = {**settings, **processor(), "python": platform.python_version()}
    notes = [
        "a simulation: squares of one colour stand in for pictures, nothing is flushed to the disk, no group of "
        "processes is made",
        described(about),
        "seconds without starting Python; memory is resident memory with Python's, without Paddle and any model",
        f"most files and folders in one folder, while ranks drew and after: {max(most_files):,}",
    ]
    table = Table(["", "seconds", "peak memory of a rank", "pictures there"])
    for row in rows:
        there = "" if row.pictures is None else f"{row.pictures:,}"
        table.add(row.what, f"{row.seconds:.2f}", format_bytes(row.peak_bytes), there)
    results = {"run": about, "most_files": max(most_files), "rows": [asdict(row) for row in rows]}
    files.write(Page("A file of very many prompts: simulated", notes, [table]), results)


def _rows(args: argparse.Namespace, folder: Path, most_files: list[int]) -> Iterator[Row]:
    from ppdiffusers_tome.tools.batch.simulation import simulate, start_alone, write_prompts

    run = _run(args, folder, "drawn")
    write_prompts(run.prompts, args.lines)
    chunks = -(-args.lines // args.pictures_per_folder)
    killed = simulate(run, args.ranks, args.at_once, most_turns=max(1, args.ranks * chunks // 2))
    yield _row(f"start of rank 0 on {args.lines:,} lines, all of which it checks", killed.started[:1])
    resumed = simulate(run, args.ranks, args.at_once)
    most_files += [killed.most_files, resumed.most_files]
    yield _row("start of rank 0 after all ranks were killed halfway", resumed.started[:1])
    if args.ranks > 1:
        yield _row("start of the other ranks then, one by one", resumed.started[1:])
    yield _row(f"drawing with the stand-in, {args.at_once} ranks at a time", resumed.drawn, count=False)
    assert resumed.gathered is not None
    yield _row("gathering what is left at the end", [resumed.gathered])
    yield _row("start of rank 0 when all is finished", [start_alone(run)])
    run = _run(args, folder, "started")
    write_prompts(run.prompts, args.start_lines)
    yield _row(f"start of one rank on {args.start_lines:,} lines, all of which it checks", [start_alone(run)])
    yield _row("the same again, nothing drawn", [start_alone(run)])


def _run(args: argparse.Namespace, folder: Path, name: str) -> Run:
    from ppdiffusers_tome.tools.batch.run import Run

    return Run(
        folder / f"{name}.jsonl", folder / name, {"model": "stand-in"}, batch_size=args.batch_size,
        pictures_per_folder=args.pictures_per_folder,
    )  # fmt: skip


def _row(what: str, reports: Sequence[Report], *, count: bool = True) -> Row:
    peaks = [report.peak_bytes for report in reports if report.peak_bytes is not None]
    slowest = max(report.seconds for report in reports)
    return Row(what, slowest, max(peaks, default=None), reports[0].drawn if count else None)
