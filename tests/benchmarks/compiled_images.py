"""Measure images of pipelines that OpenVINO compiled, beside Paddle's.

    PYTHONPATH=tests python -m benchmarks.compiled_images images photographs --precisions float32 bfloat16
    PYTHONPATH=tests python -m benchmarks.compiled_images first photographs --precisions float32 bfloat16

``images``: similarity to Paddle's image of the same prompt, seed and setting, and seconds of an image, in turns. Paddle
has onnxruntime's kernels for attention and convolutions, as where programs are compared.
``first``: seconds of a fresh process's first image, compiling included, with an empty folder of notes, so that programs
are compared with Paddle, and with a filled one. DDIM; each command writes compiled_COMMAND_MODEL.md and .json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.call_memory import read_mebibytes
from benchmarks.compiled_unet import add_precisions, require_precisions
from benchmarks.quality import MERGED, UNMERGED, make_variant
from benchmarks.results import parse_count, parse_size
from benchmarks.step_caches import PROMPTS, SIZES, Model
from benchmarks.timing import Spread, rotate
from benchmarks.turns import take_turns
from ppdiffusers_tome.tools.console.output import import_quietly
from ppdiffusers_tome.tuning.measurement import read_clock
from ppdiffusers_tome.tuning.similarity import compute_psnr

PADDLE, SCHEDULER, GUIDANCES = "Paddle", "ddim", (7.5, 1.5)


def main(argv: Sequence[str] | None = None) -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("command", choices=("images", "first"))
    parser.add_argument("model", choices=("photographs", "emoji"))
    add_precisions(parser)
    parser.add_argument("--settings", choices=(UNMERGED, *MERGED), nargs="+", default=[UNMERGED, "balanced"],
                        metavar="NAME", help=f"of {', '.join((UNMERGED, *MERGED))} (unmerged balanced)")  # fmt: skip
    parser.add_argument("--size", type=parse_size, metavar="PIXELS", help="(photographs 256, emoji 128)")
    parser.add_argument("--steps", type=parse_count, default=20, metavar="N")
    parser.add_argument("--images", type=parse_count, default=24, metavar="N", help="at each guidance (24)")
    parser.add_argument("--rounds", type=parse_count, default=3, metavar="N", help="of first: processes of a kind (3)")
    args = parser.parse_args(argv)
    require_precisions(parser, args.precisions)
    args.size = args.size or SIZES[args.model]
    with import_quietly():
        about = {"model": args.model, "size": args.size, "steps": args.steps, **pages.machine()}
    notes = [pages.describe(about), "median (lowest to highest); peak: resident memory of the process"]
    with tempfile.TemporaryDirectory() as folder:
        rows = (compare_images if args.command == "images" else measure_processes)(args, Path(folder))
    table = pages.table(list(rows[0]), [list(row.values()) for row in rows], left=2)
    title = f"Compiled images: {args.command}"
    pages.write(args, f"compiled_{args.command}_{args.model}", pages.page(title, notes, table),
                {"run": about, "rows": rows})  # fmt: skip


def load_model(name: str, engine: str) -> Any:
    """Load a model that Paddle computes, or programs of a precision."""
    from ppdiffusers_tome.compilation.api import compile_cpu

    model = Model(name, SCHEDULER, uses_kernels=engine == PADDLE)
    if engine != PADDLE:
        compile_cpu(model.pipe, engine)
    return model


def use_notes(folder: Path) -> None:
    """Note comparisons in a folder; fail where Paddle computes what should be compiled."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    warnings.filterwarnings("error", "ToMe: ")


def compare_images(args: argparse.Namespace, folder: Path) -> list[dict[str, str]]:
    """Return a row for each setting, guidance and engine."""
    use_notes(folder)
    models = {engine: load_model(args.model, engine) for engine in (PADDLE, *args.precisions)}
    rows = []
    for setting in args.settings:
        for model in models.values():
            model.apply(make_variant(setting))
            generate(model, 0, GUIDANCES[0], args)  # which compiles
        for guidance in GUIDANCES:
            images = [compare_image(models, number, guidance, args) for number in range(args.images)]
            for engine in models:
                seconds, psnrs = zip(*(image[engine] for image in images), strict=True)
                paddle_seconds = [image[PADDLE][0] for image in images]
                rows.append({
                    "setting": setting, "engine": engine, "guidance": f"{guidance:g}",
                    "dB, median": f"{statistics.median(psnrs):.1f}", "dB, lowest": f"{min(psnrs):.1f}",
                    "seconds of an image": Spread.from_values(seconds).format("{:.2f}".format),
                    "times as fast": f"{statistics.median(paddle_seconds) / statistics.median(seconds):.2f}x",
                    "images": str(len(images)),
                })  # fmt: skip
    return rows


def compare_image(
    models: dict[str, Any], number: int, guidance: float, args: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Return each engine's seconds of an image, and its PSNR beside Paddle's."""
    seconds, pixels = {}, {}
    for engine in rotate(list(models), number):
        begin = read_clock()
        pixels[engine] = np.asarray(generate(models[engine], number, guidance, args))
        seconds[engine] = read_clock() - begin
    return {engine: (seconds[engine], compute_psnr(pixels[PADDLE], pixels[engine])) for engine in models}


def generate(model: Any, number: int, guidance: float, args: argparse.Namespace) -> Any:
    """Generate an image; its number chooses the prompt and the seed."""
    prompts = PROMPTS[args.model]
    return model.generate(prompts[number % len(prompts)], args.steps, seed=number, guidance=guidance, size=args.size)


def measure_processes(args: argparse.Namespace, folder: Path) -> list[dict[str, str]]:
    """Return a row for each engine and setting, without and with notes."""
    rows = []
    for setting in args.settings:
        turns = {}
        for engine in (PADDLE, *args.precisions):
            for notes in ("-",) if engine == PADDLE else ("empty", "filled"):
                turns[f"{engine}|{notes}"] = partial(
                    pages.run_in_child, measure_first, args, setting, engine, folder / f"{setting}-{engine}",
                    notes == "empty",
                )  # fmt: skip
        for name, found in take_turns(turns, args.rounds, progress=setting).items():
            engine, notes = name.split("|")
            row = {"setting": setting, "engine": engine, "notes": notes}
            for heading in found[0]:
                row[heading] = Spread.from_values([each[heading] for each in found]).format("{:.4g}".format)
            rows.append(row)
    return rows


def measure_first(args: argparse.Namespace, setting: str, engine: str, folder: Path, empties: bool) -> dict[str, float]:
    """Measure this process's first images, with guidance."""
    if empties:
        shutil.rmtree(folder, ignore_errors=True)
    use_notes(folder)
    times = [read_clock()]
    model = load_model(args.model, engine)
    model.apply(make_variant(setting))
    times.append(read_clock())
    for _ in range(2):
        generate(model, 0, GUIDANCES[0], args)
        times.append(read_clock())
    loading, first, after = np.diff(times).tolist()
    peak = read_mebibytes("VmHWM")
    return {"loading, s": loading, "first image, s": first, "next image, s": after, "peak, MiB": peak}


if __name__ == "__main__":
    pages.prepare()
    main()
