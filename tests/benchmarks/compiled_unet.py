"""Measure a call of a UNet that OpenVINO compiled, beside OpenVINO from PyTorch.

    PYTHONPATH=tests python -m benchmarks.compiled_unet --peer-python venv-with-openvino/bin/python
    PYTHONPATH=tests python -m benchmarks.compiled_unet --precisions float32 bfloat16 --sizes 512 --rounds 1

Stable Diffusion 1.5's shape with random weights. A program holds the weights once more, so each row has a process of
its own, and the processes take turns: unmerged, ``ratio=0.5`` and the presets by ``compile_cpu``, and with
--peer-python the rows of ``openvino_peer.py``. In the first round a row's folder of notes is empty, so its program is
compared with Paddle; in later rounds it is filled. Writes compiled_unet.md and compiled_unet.json, and
compiled_unet.jsonl line by line: stopped, the same command resumes, and with more --rounds it adds some.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.call_memory import read_mebibytes
from benchmarks.random_models import RANDOM_UNETS
from benchmarks.results import parse_count, parse_size, run_jobs
from benchmarks.timing import Spread, measure_seconds, rotate
from benchmarks.variants import NONE, OURS, VARIANTS, apply_variant
from benchmarks.workloads import PLAIN, Case, load_workload
from ppdiffusers_tome.cpu import choose_threads
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.machine import PRECISIONS, explain_missing_precision, has_precision
from ppdiffusers_tome.tools.console.output import import_quietly, warn
from ppdiffusers_tome.tools.console.tables import Table, write_page
from ppdiffusers_tome.tools.generation.arguments import add_output_arguments
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.system import describe_machine

COMPILED, PEER = "compiled", "from PyTorch"
COMPILED_VARIANTS = (NONE, OURS, "preset-balanced", "preset-quality")
PEER_SCRIPT = Path(__file__).with_name("openvino_peer.py")
PEER_VARIANTS = ("torch", "torch-tomesd", "openvino", "openvino-tomesd")
RATIO, FLOAT32 = 0.5, "float32"
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


@dataclass(frozen=True)
class Row:
    """The settings that one process measures.

    Attributes:
        model, size, batch: of the call.
        precision: of the computation.
        engine: ``COMPILED`` or ``PEER``.
        variant: of ``VARIANTS``; of a peer, one of its own.
    """

    model: str
    size: int
    batch: int
    precision: str
    engine: str
    variant: str


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=RANDOM_UNETS, default="sd15-random", metavar="NAME")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[512, 768, 1024], metavar="PIXELS")
    add_precisions(parser)
    parser.add_argument("--variants", choices=COMPILED_VARIANTS, nargs="+", default=COMPILED_VARIANTS, metavar="NAME")
    parser.add_argument("--peer-python", type=Path, metavar="FILE", help="python for the rows of openvino_peer.py")
    parser.add_argument("--batch", type=parse_count, default=1, metavar="N", help="of which guidance takes two (1)")
    parser.add_argument("--repeats", type=parse_count, default=3, metavar="N", help="timed calls of a process (3)")
    parser.add_argument("--rounds", type=parse_count, default=2, metavar="N", help="processes of each row (2)")
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    require_precisions(parser, args.precisions)
    paths = pages.prepare_results(args, "compiled_unet")
    with import_quietly():
        machine = describe_machine()
    machine["threads"] = choose_threads()
    ledger = Ledger(args.output / "compiled_unet.jsonl", {"repeats": args.repeats, **machine}, overwrite=args.overwrite)
    jobs, rows = [], []
    for size, precision in product(args.sizes, args.precisions):
        side_by_side = list_rows(args, size, precision)
        rows += side_by_side
        turns = [(asdict(row), number) for number in range(args.rounds) for row in rotate(side_by_side, number)]
        missing = [key for key in turns if key not in ledger]
        jobs.append((f"{size}x{size}, {precision}", missing, partial(measure_turns, args)))
    run_jobs(jobs, ledger, description="processes")
    results = {row: [ledger[asdict(row), n] for n in range(args.rounds) if (asdict(row), n) in ledger] for row in rows}
    notes = [
        pages.describe(machine),
        f"{args.model}, batch {args.batch}; {args.rounds} processes of {args.repeats} timed calls after the first",
        "seconds of a call: median (lowest to highest); times as fast: by medians of all calls",
        "made in: what came before the first result, above a call; compared: with an empty cache folder",
        "peak: resident memory of the process, with Paddle or PyTorch; own: without mapped files, at the end",
        "difference: from Paddle or PyTorch in float32",
    ]
    content = {
        "date": date.today().isoformat(), "machine": machine,
        "results": [{**asdict(row), "rounds": rounds} for row, rounds in results.items()],
    }  # fmt: skip
    write_page(*paths, "A compiled UNet", notes, make_table(results), content)


def add_precisions(parser: argparse.ArgumentParser) -> None:
    """Add ``--precisions``."""
    parser.add_argument("--precisions", choices=PRECISIONS, nargs="+", default=[FLOAT32], metavar="NAME",
                        help=f"{', '.join(PRECISIONS)} ({FLOAT32})")  # fmt: skip


def require_precisions(parser: argparse.ArgumentParser, precisions: Sequence[str]) -> None:
    """Refuse precisions in which the processor does not compute."""
    for precision in precisions:
        if not has_precision(precision):
            parser.error(explain_missing_precision(precision))


def be_without_bfloat16() -> None:
    """Let this process compute without bfloat16, by AVX-512 VNNI.

    Call it before Paddle loads.
    """
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI"
    PRECISIONS["bfloat16"] = ("none",)


def list_rows(args: argparse.Namespace, size: int, precision: str) -> list[Row]:
    """List what takes turns at a size and precision."""
    row = Row(args.model, size, args.batch, precision, COMPILED, NONE)
    rows = [replace(row, variant=name) for name in args.variants]
    if args.peer_python is not None:
        # PyTorch has no 8 bits.
        names = [name for name in PEER_VARIANTS if precision != "int8" or name.startswith("openvino")]
        rows += [replace(row, engine=PEER, variant=name) for name in names]
    return rows


def measure_turns(args: argparse.Namespace, keys: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Measure each key's row in its own process; report and omit failures."""
    for key in keys:
        row = Row(**key[0])
        try:
            if row.engine == PEER:
                yield key, measure_peer(row, args.repeats, args.peer_python)
            else:
                name = "-".join(map(str, (row.model, row.size, row.batch, row.precision, row.variant)))
                folder = args.output / "compiled_unet_cache" / name
                yield key, pages.run_in_child(measure, row, args.repeats, folder, key[1] == 0)
        except MemoryError:
            warn(f"{row} was not measured: the system ended its process, as memory ran out")
        except Exception as error:
            warn(f"{row} was not measured: {' '.join(str(error).split())[-300:] or type(error).__name__}")


def measure(row: Row, repeats: int, folder: Path, compares: bool) -> dict[str, Any]:
    """Measure a row in this process.

    Args:
        row: of our own.
        repeats: timed calls.
        folder: of notes of comparisons.
        compares: empty the folder first.
    """
    from ppdiffusers_tome.compilation.api import compile_cpu, uncompile_cpu
    from ppdiffusers_tome.compilation.comparison import measure_difference
    from ppdiffusers_tome.compilation.slices import compute_in_slices

    if compares:
        shutil.rmtree(folder, ignore_errors=True)
    os.environ["XDG_CACHE_HOME"] = str(folder.absolute())
    warnings.filterwarnings("error", "ToMe: ")  # such as of a call that Paddle computes instead
    model, run = load_workload(Case(row.model, FLOAT32, PLAIN, row.size, row.batch, steps=1))
    outputs: list[Any] = []
    model.register_forward_post_hook(lambda layer, inputs, output: outputs.append(output))
    with apply_variant(model, VARIANTS[row.variant], RATIO):
        begin = measure_seconds(lambda: compile_cpu(model, row.precision))
        first, *seconds = (measure_seconds(lambda: run(1)) for _ in range(repeats + 1))
        found = {
            "compared": compares,
            "making": begin + first - statistics.median(seconds),
            "seconds": seconds,
            "peak_mib": read_mebibytes("VmHWM"),
            "own_mib": read_mebibytes("RssAnon"),
        }
        if found["compared"]:
            compute_in_slices(uncompile_cpu(model))
            run(1)
            found["difference"] = measure_difference(outputs[0], outputs[-1])
    return found


def measure_peer(row: Row, repeats: int, python: Path) -> dict[str, Any]:
    """Measure a row by another python."""
    options = {"model": row.model, "variants": row.variant, "sizes": row.size, "precision": row.precision,
               "batch": row.batch, "repeats": repeats}  # fmt: skip
    with start_peer(python, options) as process:
        output, _ = process.communicate()
    if process.returncode == -9:
        raise MemoryError
    if process.returncode:
        raise UserError(f"--peer-python {python} could not run {PEER_SCRIPT.name}")
    return json.loads(output.splitlines()[-1])


def iterate_peer(python: Path, options: dict[str, Any]) -> Generator[float, None, None]:
    """Yield the seconds of calls by another python, which waits until it is asked."""
    with start_peer(python, {**options, "waits": ""}) as process:
        try:
            while True:
                process.stdin.write("\n")
                process.stdin.flush()
                yield float(process.stdout.readline())
        except (OSError, ValueError) as error:
            raise UserError(f"--peer-python {python} could not run {PEER_SCRIPT.name}") from error
        finally:
            process.kill()


def start_peer(python: Path, options: dict[str, Any]) -> subprocess.Popen[str]:
    """Start ``openvino_peer.py`` with options on all cores."""
    given = [f"--{name}={value}" if value != "" else f"--{name}" for name, value in options.items()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | _KEEP_FREED_MEMORY
    command = [str(python), str(PEER_SCRIPT), f"--threads={choose_threads()}", *given]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def make_table(results: dict[Row, list[dict[str, Any]]]) -> Table:
    """Return a line for each row that was measured."""
    seconds = {row: [each for found in rounds for each in found["seconds"]] for row, rounds in results.items()}
    seconds = {row: values for row, values in seconds.items() if values}
    bases: list[Callable[[Row], Row]] = [
        lambda row: replace(row, variant=row.variant.removesuffix("-tomesd") if row.engine == PEER else NONE),
        lambda row: replace(row, engine=PEER, variant="openvino"),
    ]
    headings = ["size", "precision", "engine", "variant", "seconds", "times as fast as unmerged",
                "as OpenVINO from PyTorch", "made in s, compared", "made in s", "peak MiB, compared", "peak MiB",
                "own MiB, compared", "own MiB", "difference"]  # fmt: skip
    table = Table(headings, left=4)
    for row, values in seconds.items():
        speedups = [
            f"{statistics.median(seconds[base]) / statistics.median(values):.2f}x" if base in seconds else "-"
            for base in (find_base(row) for find_base in bases)
        ]

        def describe(name: str, compared: bool | None, form: str, row: Row = row) -> str:
            found = [each[name] for each in results[row] if name in each and each.get("compared", False) == compared]
            return format(statistics.median(found), form) if found else "-"

        table.add(
            f"{row.size}x{row.size}", row.precision, row.engine, row.variant,
            Spread.from_values(values).format("{:.3g}".format), *speedups,
            describe("making", True, ".1f"), describe("making", False, ".1f"),
            describe("peak_mib", True, ".0f"), describe("peak_mib", False, ".0f"),
            describe("own_mib", True, ".0f"), describe("own_mib", False, ".0f"),
            describe("difference", row.engine == COMPILED, ".1e"),
        )  # fmt: skip
    return table


if __name__ == "__main__":
    pages.prepare()
    main()
