"""Measure a compiled UNet's steps, with merging, a cache, and both.

    PYTHONPATH=tests python -m benchmarks.compiled_steps --precision bfloat16 --sizes 512

Stable Diffusion 1.5's shape with random weights, batch 1, DDIM; of each size a process of its own. Settings take
turns, an image each after one that compiles. Prints seconds of all calls of an image, of a computed and a skipped one
(medians), and the process's own memory (RssAnon). Appends to compiled_steps.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.call_memory import read_mebibytes
from benchmarks.results import parse_count, parse_size
from benchmarks.timing import rotate
from ppdiffusers_tome.tools.console.output import import_quietly

SETTINGS: dict[str, dict[str, Any] | None] = {
    "unmerged": None,
    "balanced": dict(ratio="balanced"),
    "cache=0.2": dict(ratio=0, cache=0.2),
    "balanced, cache=0.2": dict(ratio="balanced", cache=0.2),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sd15-random", metavar="NAME")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[512], metavar="PIXELS")
    parser.add_argument("--precision", default="float32", metavar="NAME")
    parser.add_argument("--settings", choices=SETTINGS, nargs="+", default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--steps", type=parse_count, default=20, metavar="N")
    parser.add_argument("--rounds", type=parse_count, default=1, metavar="N", help="timed images of each setting (1)")
    parser.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER")
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    for size in args.sizes:
        for found in pages.run_in_child(measure, args, size):
            print(
                f"{size}x{size}, {args.precision}, {found['setting']}: {found['image']:.1f} s an image of {args.steps} "
                f"calls, {found['computed']:.2f} s a computed call, {found['skipped'] or 0:.2f} s a skipped one, "
                f"{found['own_mib']:.0f} MiB", flush=True,
            )  # fmt: skip
            with (args.output / "compiled_steps.jsonl").open("a") as file:
                file.write(json.dumps({"size": size, "precision": args.precision, **found}) + "\n")


def measure(args: argparse.Namespace, size: int) -> list[dict[str, Any]]:
    """Measure all settings in this process."""
    with import_quietly():
        import paddle

        import tiny
        from benchmarks.random_models import random_model
        from ppdiffusers_tome import apply_tome, compile_cpu, remove_tome
    pipe = tiny.Sampler(random_model(args.model), tiny.scheduler())
    compile_cpu(pipe, args.precision)
    latents = tiny.array((1, 4, size // 8, size // 8))
    text = tiny.array((1, 77, pipe.unet.config.cross_attention_dim), seed=2)
    calls: list[float] = []

    def call(unet: Any, number: int, timestep: float) -> None:
        begin = time.perf_counter()
        unet(latents, paddle.to_tensor([int(timestep)]), text)
        calls.append(time.perf_counter() - begin)

    results: dict[str, list[list[tuple[bool, float]]]] = {name: [] for name in args.settings}
    memory: dict[str, float] = {}
    for number in range(args.rounds + 1):
        for name in rotate(args.settings, number):
            remove_tome(pipe)
            if (settings := SETTINGS[name]) is not None:
                apply_tome(pipe, **settings)
            calls.clear()
            pipe(call, steps=args.steps)
            report = None if pipe.tome is None else pipe.tome.entries[0].last_image
            computed = range(args.steps) if report is None else report.computed_steps
            memory.setdefault(name, read_mebibytes("RssAnon"))
            if number:  # the first one compiles
                results[name].append([(step in computed, seconds) for step, seconds in enumerate(calls)])
    return [
        {
            "setting": name,
            "image": statistics.median(sum(seconds for _, seconds in image) for image in images),
            "computed": statistics.median(seconds for image in images for is_computed, seconds in image if is_computed),
            "skipped": statistics.median(
                [seconds for image in images for is_computed, seconds in image if not is_computed] or [0.0]
            ),
            "own_mib": memory[name],
        }
        for name, images in results.items()
    ]


if __name__ == "__main__":
    pages.prepare()
    main()
