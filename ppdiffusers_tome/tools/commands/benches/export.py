"""``ppdiffusers-tome bench export``: a UNet as it is and as an exported program, unmerged and merged, side by side."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS
from ppdiffusers_tome.tools.drawing.arguments import add_output_arguments
from ppdiffusers_tome.tools.drawing.settings import check_size

HELP = "Measure a UNet in dynamic mode, as a loaded program and in Paddle Inference, unmerged and merged."
EXAMPLES = """the same UNet on the same input, all taking turns: as it is (dynamic), through paddle.jit.load (program),
and through Paddle Inference with IR optimisation (inference). Writes export.md and export.json.

examples:
  ppdiffusers-tome bench export
  ppdiffusers-tome bench export --model sd15-random --height 768 --width 768 --repeats 5
"""
DYNAMIC, PROGRAM, INFERENCE = "dynamic", "program", "inference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=list(RANDOM_UNETS), default="sd15-tiny-random", metavar="MODEL",
                        help=f"a UNet with random weights: {', '.join(RANDOM_UNETS)} (default: sd15-tiny-random)")
    parser.add_argument("--height", type=int, default=512, metavar="PIXELS", help="default: 512")
    parser.add_argument("--width", type=int, default=512, metavar="PIXELS", help="default: 512")
    parser.add_argument("--rows", type=int, default=2, metavar="N", help="rows of its input (default: 2)")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed calls of each (default: 3)")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    for name in ("height", "width"):
        check_size(name, getattr(args, name))
    for name in ("rows", "repeats"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)} must be 1 or more")
    config = ToMeConfig(args.ratio)
    from ppdiffusers_tome.exporting.files import prepare_folder, write_whole
    from ppdiffusers_tome.tools.bench.overhead import measured_on
    from ppdiffusers_tome.tools.console.output import quiet_libraries, say

    paths = prepare_folder(args.output, ["export.md", "export.json"], overwrite=args.overwrite)
    with quiet_libraries():
        seconds = _measured(args, config)
        told = {
            "model": args.model, "height": args.height, "width": args.width, "rows": args.rows, "ratio": args.ratio,
            "repeats": args.repeats, **measured_on(),
        }  # fmt: skip
        rows = _rows(seconds)
        table = _markdown(told, rows)
        found = json.dumps({"run": told, "rows": rows, "seconds": seconds}, indent=2) + "\n"
        write_whole(paths[0], lambda file: file.write(table.encode()), overwrite=args.overwrite)
        write_whole(paths[1], lambda file: file.write(found.encode()), overwrite=args.overwrite)
        say(table)
        for path in paths:
            say(str(path))


def _measured(args: argparse.Namespace, config: ToMeConfig) -> dict[str, list[float]]:
    """Seconds of every timed call, by who made it; a first call of each set things up."""
    from tqdm import tqdm

    from ppdiffusers_tome.api import apply_tome
    from ppdiffusers_tome.exporting.programs import denoiser_part
    from ppdiffusers_tome.tools.bench.random_unets import random_unet

    calls: dict[str, Callable[[], Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("unmerged", "merged"):
            unet = random_unet(args.model)
            if kind == "merged":
                apply_tome(unet, config)
            part = denoiser_part(unet, height=args.height, width=args.width, rows=args.rows)
            part.save(Path(folder) / kind)
            for way, call in _ways(part, Path(folder) / kind).items():
                calls[f"{kind}, {way}"] = call
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for number in tqdm(range(args.repeats + 1), desc="rounds", disable=None):
            for name, call in calls.items():
                taken = _seconds(call)
                if number > 0:
                    seconds[name].append(taken)
    return seconds


def _ways(part: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """One call of the UNet in every way."""
    import paddle

    from ppdiffusers_tome.exporting.programs import PROGRAM as FILE
    from ppdiffusers_tome.exporting.programs import load_program

    example = part.examples()[0]
    layer = part.build()
    layer.eval()
    loaded = paddle.jit.load(str(folder / part.name / FILE))
    program = load_program(folder / part.name)
    return {
        DYNAMIC: lambda: layer(*example.values()),
        PROGRAM: lambda: loaded(*example.values()),
        INFERENCE: lambda: program(**example),
    }


def _seconds(call: Callable[[], Any]) -> float:
    import paddle

    from ppdiffusers_tome.tools.measuring.clock import synchronize

    with paddle.no_grad():
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        return time.perf_counter() - start


def _rows(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """The median of each, its range, and how much faster than dynamic and unmerged, round by round."""
    base = seconds[f"unmerged, {DYNAMIC}"]
    rows = []
    for name, taken in seconds.items():
        gains = [one / other for one, other in zip(base, taken, strict=True)]
        rows.append({
            "name": name, "seconds": statistics.median(taken), "range": [min(taken), max(taken)],
            "speed_up": statistics.median(gains),
        })  # fmt: skip
    return rows


def _markdown(told: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = [
        "# A UNet in dynamic mode and exported", "",
        "- " + ", ".join(f"{name}: {value}" for name, value in told.items()),
        f"- {DYNAMIC}: as it is; {PROGRAM}: paddle.jit.load; {INFERENCE}: Paddle Inference, IR optimisation on", "",
        "| UNet | seconds of a call | speed-up |", "|---|---:|---:|",
    ]  # fmt: skip
    for row in rows:
        low, high = row["range"]
        lines.append(f"| {row['name']} | {row['seconds']:.3f} ({low:.3f} to {high:.3f}) | {row['speed_up']:.2f}x |")
    return "\n".join(lines) + "\n"
