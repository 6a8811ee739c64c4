"""``ppdiffusers-tome bench attach``: how long ``apply_tome`` and ``remove_tome`` themselves take."""

from __future__ import annotations

import argparse
import time

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS

HELP = "Measure how long apply_tome and remove_tome themselves take."
EXAMPLES = """all blocks of the UNet are attached to (max_downsample 8). Prints; writes nothing.

examples:
  ppdiffusers-tome bench attach
  ppdiffusers-tome bench attach --model sd15-tiny-random --repeats 50
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=list(RANDOM_UNETS), default="sd15-random", metavar="MODEL",
                        help=f"a UNet with random weights: {', '.join(RANDOM_UNETS)} (default: sd15-random)")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="timed runs (default: 20)")


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats} must be 1 or more")
    from ppdiffusers_tome.tools.console.output import quiet_libraries, say

    with quiet_libraries():
        from ppdiffusers_tome.api import apply_tome
        from ppdiffusers_tome.attaching.applying import applied_tome, remove_tome
        from ppdiffusers_tome.tools.bench.overhead import measured_on
        from ppdiffusers_tome.tools.bench.random_unets import random_unet
        from ppdiffusers_tome.tools.measuring.spread import Spread

        unet = random_unet(args.model)
        applied, removed, blocks = [], [], 0
        for _ in range(args.repeats):
            start = time.perf_counter()
            apply_tome(unet, max_downsample=8)
            middle = time.perf_counter()
            found = applied_tome(unet)
            blocks = found.num_blocks if found else 0
            begin_remove = time.perf_counter()
            remove_tome(unet)
            applied.append(1000 * (middle - start))
            removed.append(1000 * (time.perf_counter() - begin_remove))
        say(f"{args.model}, {blocks} blocks; " + ", ".join(f"{name}: {value}" for name, value in measured_on().items()))
        for name, values in (("apply_tome", applied), ("remove_tome", removed)):
            spread = Spread.of(values)
            say(f"{name}: {spread.median:.1f} ms ({spread.low:.1f} to {spread.high:.1f})")
