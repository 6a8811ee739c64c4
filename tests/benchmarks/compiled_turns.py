"""Measure calls of a compiled UNet in turns, beside OpenVINO from PyTorch.

    PYTHONPATH=tests python -m benchmarks.compiled_turns --precisions float32 bfloat16 int8
    PYTHONPATH=tests python -m benchmarks.compiled_turns --sizes 768 --peer-python venv-with-openvino/bin/python

Stable Diffusion 1.5's shape with random weights. Each precision and setting has a process of its own that waits for its
turn, so all are compared beside each other on a machine whose speed drifts; at 512x512 a process takes 5 to 10 GiB. A
round that warms up does not count. Prints seconds of a call (median, lowest, highest) and how many times as fast as the
first line (median of the rounds). Appends to compiled_turns.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Generator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.compiled_unet import add_precisions, be_without_bfloat16, iterate_peer, require_precisions
from benchmarks.random_models import RANDOM_UNETS
from benchmarks.results import parse_count, parse_size
from benchmarks.timing import Spread, measure_seconds
from benchmarks.turns import take_turns
from benchmarks.variants import NONE, VARIANTS, apply_variant
from ppdiffusers_tome.tools.console.output import import_quietly

Seconds = Generator[float, None, None]
PEERS = ("openvino", "openvino-tomesd")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=RANDOM_UNETS, default="sd15-random", metavar="NAME")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[512], metavar="PIXELS")
    add_precisions(parser)
    parser.add_argument("--variants", choices=VARIANTS, nargs="+", default=[NONE, "preset-balanced"], metavar="NAME")
    parser.add_argument("--peer-python", type=Path, metavar="FILE", help="python for the rows of openvino_peer.py")
    parser.add_argument("--batch", type=parse_count, default=1, metavar="N", help="of which guidance takes two (1)")
    parser.add_argument("--rounds", type=parse_count, default=7, metavar="N", help="calls of each (7)")
    parser.add_argument("--vnni", action="store_true", help="as on a processor with AVX-512 VNNI, without bfloat16")
    parser.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER")
    args = parser.parse_args(argv)
    if args.vnni:
        be_without_bfloat16()  # the processes, too
    require_precisions(parser, args.precisions)
    for size in args.sizes:
        rows = {
            f"{precision}, {name}": pages.iterate_in_child(iterate_calls, args, size, precision, name)
            for precision, name in product(args.precisions, args.variants)
        }
        if args.peer_python is not None:
            for precision, name in product(args.precisions, PEERS):
                options = {"model": args.model, "sizes": size, "precision": precision, "batch": args.batch}
                rows[f"{precision}, {name}"] = iterate_peer(args.peer_python, {**options, "variants": name})
        found = measure_in_turns(rows, args.rounds, f"{size}x{size}, batch {args.batch}")
        append_results(args.output / "compiled_turns.jsonl", found, size=size, batch=args.batch, vnni=args.vnni)


def measure_in_turns(
    rows: dict[str, Seconds], rounds: int, title: str, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Return and print the seconds of what waiting processes compute in turns.

    Args:
        rows: each process's seconds, of which the first ones are of making programs.
        rounds: turns of each that count.
        title: of the lines that are printed.
        warm_up: whether one more round comes first, which does not count.
    """
    try:
        first = {name: next(seconds) for name, seconds in rows.items()}  # one at a time, as making takes all cores
        turns = {name: partial(next, seconds) for name, seconds in rows.items()}
        found = take_turns(turns, rounds, warm_up=warm_up, progress=title)
    finally:
        for seconds in rows.values():
            seconds.close()
    base = next(iter(found.values()))
    for name, values in found.items():
        ratio = statistics.median(a / b for a, b in zip(base, values, strict=True))
        spread = Spread.from_values(values).format("{:.2f}".format)
        print(f"{title}, {name}: {spread} s, {ratio:.2f}x, first {first[name]:.0f} s", flush=True)
    return found


def append_results(path: Path, found: dict[str, list[float]], **conditions: Any) -> None:
    """Append a line of JSON for each row and its conditions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(
            json.dumps({**conditions, "row": name, "seconds": seconds}) + "\n" for name, seconds in found.items()
        )


def iterate_calls(args: argparse.Namespace, size: int, precision: str, variant: str) -> Seconds:
    """Yield the seconds of calls, of which the first compiles."""
    if args.vnni:
        be_without_bfloat16()
    with import_quietly():
        import paddle

        import tiny
        from benchmarks.random_models import random_model
        from ppdiffusers_tome import compile_cpu
    unet = random_model(args.model)
    inputs = tiny.array((args.batch, 4, size // 8, size // 8)), paddle.to_tensor([500])
    text = tiny.array((args.batch, 77, unet.config.cross_attention_dim), seed=2)
    with apply_variant(unet, VARIANTS[variant], 0.5), paddle.no_grad():
        compile_cpu(unet, precision)
        while True:
            yield measure_seconds(partial(unet, *inputs, text))


if __name__ == "__main__":
    pages.prepare()
    main()
