"""``ppdiffusers-tome bench export``: a UNet as it is and as an exported program, unmerged and merged, side by side."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.arguments import add_random_unet, add_ratio, add_repeats, require_at_least
from ppdiffusers_tome.tools.bench.result_files import ResultFiles, described
from ppdiffusers_tome.tools.cli.arguments import add_output_arguments
from ppdiffusers_tome.tools.cli.console.output import quiet_libraries
from ppdiffusers_tome.tools.cli.console.tables import Page, Table
from ppdiffusers_tome.tools.generation.settings import check_sizes
from ppdiffusers_tome.tools.measure.clock import seconds_of
from ppdiffusers_tome.tools.measure.machine import measured_on
from ppdiffusers_tome.tools.measure.rounds import take_turns
from ppdiffusers_tome.tools.measure.spread import Spread

if TYPE_CHECKING:
    from ppdiffusers_tome.export.programs import Component

HELP = "Measure a UNet in dynamic mode, as a loaded program and in Paddle Inference, unmerged and merged."
EXAMPLES = """the same UNet on the same input, all taking turns: as it is (dynamic), through paddle.jit.load (program),
and through Paddle Inference with IR optimisation (inference). Writes export.md and export.json.

examples:
  ppdiffusers-tome bench export
  ppdiffusers-tome bench export --model sd15-random --height 768 --width 768 --repeats 5
"""
DYNAMIC, PROGRAM, INFERENCE = "dynamic", "program", "inference"


@dataclass(frozen=True)
class Row:
    """One way to run the UNet: seconds of a call, and how much faster than dynamic and unmerged, round by round."""

    name: str
    seconds: Spread
    speed_up: Spread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_random_unet(parser, "sd15-tiny-random")
    parser.add_argument("--height", type=int, default=512, metavar="PIXELS", help="default: 512")
    parser.add_argument("--width", type=int, default=512, metavar="PIXELS", help="default: 512")
    parser.add_argument("--rows", type=int, default=2, metavar="N", help="rows of its input (default: 2)")
    add_ratio(parser)
    add_repeats(parser, 3, "timed calls of each")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    check_sizes(args)
    require_at_least(1, args, "rows", "repeats")
    config = ToMeConfig(args.ratio)

    files = ResultFiles(args.output, "export", overwrite=args.overwrite)
    with quiet_libraries():
        seconds = _measured(args, config)
        base = seconds[f"unmerged, {DYNAMIC}"]
        rows = [Row(name, Spread.of(taken), Spread.of_quotients(base, taken)) for name, taken in seconds.items()]
        asked = {name: getattr(args, name) for name in ("model", "height", "width", "rows", "ratio", "repeats")}
        about = {**asked, **measured_on()}
        notes = [
            described(about),
            f"{DYNAMIC}: as it is; {PROGRAM}: paddle.jit.load; {INFERENCE}: Paddle Inference, IR optimisation on",
        ]
        table = Table(["UNet", "seconds of a call", "speed-up"])
        for row in rows:
            table.add(row.name, row.seconds.format("{:.3f}".format), f"{row.speed_up.median:.2f}x")
        page = Page("A UNet in dynamic mode and exported", notes, [table])
        files.write(page, {"run": about, "rows": [asdict(row) for row in rows], "seconds": seconds})


def _measured(args: argparse.Namespace, config: ToMeConfig) -> dict[str, list[float]]:
    """Seconds of every timed call, by who made it."""
    import paddle

    from ppdiffusers_tome.api import apply_tome
    from ppdiffusers_tome.export.programs import denoiser_component
    from ppdiffusers_tome.tools.bench.random_unets import random_unet

    turns: dict[str, Callable[[], float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("unmerged", "merged"):
            unet = random_unet(args.model)
            if kind == "merged":
                apply_tome(unet, config)
            component = denoiser_component(unet, height=args.height, width=args.width, rows=args.rows)
            component.save(Path(folder) / kind)
            for way, call in _ways(component, Path(folder) / kind).items():
                turns[f"{kind}, {way}"] = partial(seconds_of, call)
        with paddle.no_grad():
            return take_turns(turns, args.repeats, progress="rounds")


def _ways(component: Component, folder: Path) -> dict[str, Callable[[], Any]]:
    """One call of the UNet in every way."""
    import paddle

    from ppdiffusers_tome.export.programs import PROGRAM as FILE
    from ppdiffusers_tome.export.programs import load_program

    example = component.examples()[0]
    layer = component.build()
    layer.eval()
    loaded = paddle.jit.load(str(folder / component.name / FILE))
    program = load_program(folder / component.name)
    return {
        DYNAMIC: lambda: layer(*example.values()),
        PROGRAM: lambda: loaded(*example.values()),
        INFERENCE: lambda: program(**example),
    }
