"""Measure a call of a compiled UNet in each precision, in turns.

    PYTHONPATH=tests python -m benchmarks.compiled_precisions --sizes 512 1024

Stable Diffusion 1.5's shape with random weights; of each size a process of its own that holds all programs (at
512x512 some 15 GiB in float32, bfloat16 and int8), so that precisions and settings are compared beside each other on a
machine whose speed drifts. Prints seconds of a call (median, lowest, highest), how many times as fast as unmerged in
the first precision (median of the rounds), and the difference from float32. Appends to compiled_precisions.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.compiled_unet import add_precisions, be_without_bfloat16, require_precisions
from benchmarks.random_models import RANDOM_UNETS
from benchmarks.results import parse_count, parse_size
from benchmarks.timing import Spread, measure_seconds, rotate
from benchmarks.variants import NONE, VARIANTS, apply_variant
from ppdiffusers_tome.tools.console.output import quiet_libraries


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=RANDOM_UNETS, default="sd15-random", metavar="NAME")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[512], metavar="PIXELS")
    add_precisions(parser)
    parser.add_argument("--variants", choices=VARIANTS, nargs="+", default=[NONE, "preset-balanced"], metavar="NAME")
    parser.add_argument("--batch", type=parse_count, default=1, metavar="N", help="of which guidance takes two (1)")
    parser.add_argument("--rounds", type=parse_count, default=9, metavar="N", help="calls of each (9)")
    parser.add_argument("--vnni", action="store_true", help="as on a processor with AVX-512 VNNI, without bfloat16")
    parser.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER")
    args = parser.parse_args(argv)
    require_precisions(parser, args.precisions)
    args.output.mkdir(parents=True, exist_ok=True)
    for size in args.sizes:
        for found in pages.run_in_child(measure, args, size):
            base, seconds = found.pop("base"), found["seconds"]
            ratio = statistics.median(a / b for a, b in zip(base, seconds, strict=True))
            spread = Spread.from_values(seconds).format("{:.2f}".format)
            print(
                f"{size}x{size}, {found['precision']}, {found['variant']}: {spread} s, {ratio:.2f}x, "
                f"made in {found['making']:.0f} s, difference {found['difference']:.1e}", flush=True,
            )  # fmt: skip
            with (args.output / "compiled_precisions.jsonl").open("a") as file:
                file.write(json.dumps({"size": size, "batch": args.batch, **found}) + "\n")


def measure(args: argparse.Namespace, size: int) -> list[dict[str, Any]]:
    """Measure all precisions and variants in this process."""
    if args.vnni:
        be_without_bfloat16()
    with quiet_libraries():
        import paddle

        import tiny
        from benchmarks.random_models import random_model
        from ppdiffusers_tome import compile_cpu
        from ppdiffusers_tome.compilation.comparison import measure_difference
    latents, applied = tiny.array((args.batch, 4, size // 8, size // 8)), contextlib.ExitStack()
    calls: dict[tuple[str, str], Any] = {}
    outputs: dict[tuple[str, str], Any] = {}
    making: dict[tuple[str, str], float] = {}
    for key in product(args.precisions, args.variants):
        unet = random_model(args.model)
        applied.enter_context(apply_variant(unet, VARIANTS[key[1]], 0.5))
        compile_cpu(unet, key[0])
        text = tiny.array((args.batch, 77, unet.config.cross_attention_dim), seed=2)

        def call(key: tuple[str, str] = key, unet: Any = unet, text: Any = text) -> None:
            with paddle.no_grad():
                outputs[key] = unet(latents, paddle.to_tensor([500]), text)[0]

        making[key], calls[key] = measure_seconds(call), call
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for number in range(args.rounds):
        for key in rotate(list(calls), number):
            seconds[key].append(measure_seconds(calls[key]))
    base = seconds[args.precisions[0], args.variants[0]]
    return [
        {
            "precision": precision, "variant": variant, "seconds": seconds[precision, variant], "base": base,
            "making": making[precision, variant],
            "difference": measure_difference(outputs[precision, variant], outputs[args.precisions[0], variant]),
        }
        for precision, variant in calls
    ]  # fmt: skip


if __name__ == "__main__":
    pages.prepare()
    main()
