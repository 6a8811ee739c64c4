"""``ppdiffusers-tome bench attach``: how long ``apply_tome`` and ``remove_tome`` themselves take."""

from __future__ import annotations

import argparse

from ppdiffusers_tome.tools.bench.arguments import add_random_unet, add_repeats, require_at_least
from ppdiffusers_tome.tools.bench.result_files import described
from ppdiffusers_tome.tools.cli.console.output import print_line, quiet_libraries
from ppdiffusers_tome.tools.measure.clock import seconds_of
from ppdiffusers_tome.tools.measure.machine import measured_on
from ppdiffusers_tome.tools.measure.spread import Spread

HELP = "Measure how long apply_tome and remove_tome themselves take."
EXAMPLES = """all blocks of the UNet are attached to (max_downsample 8). Prints; writes nothing.

examples:
  ppdiffusers-tome bench attach
  ppdiffusers-tome bench attach --model sd15-tiny-random --repeats 50
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_random_unet(parser, "sd15-random")
    add_repeats(parser, 20)


def run(args: argparse.Namespace) -> None:
    require_at_least(1, args, "repeats")
    with quiet_libraries():
        from ppdiffusers_tome.api import apply_tome
        from ppdiffusers_tome.patching.apply import applied_tome, remove_tome
        from ppdiffusers_tome.tools.bench.random_unets import random_unet

        unet = random_unet(args.model)
        seconds: dict[str, list[float]] = {"apply_tome": [], "remove_tome": []}
        for _ in range(args.repeats):
            seconds["apply_tome"].append(seconds_of(lambda: apply_tome(unet, max_downsample=8)))
            applied = applied_tome(unet)
            seconds["remove_tome"].append(seconds_of(lambda: remove_tome(unet)))
        print_line(f"{args.model}, {applied.num_blocks if applied else 0} blocks; {described(measured_on())}")
        for name, values in seconds.items():
            milliseconds = Spread.of([1000 * value for value in values])
            print_line(f"{name}: {milliseconds.median:.1f} ms ({milliseconds.low:.1f} to {milliseconds.high:.1f})")
