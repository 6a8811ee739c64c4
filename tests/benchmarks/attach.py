"""Measure how long ``apply_tome`` and ``remove_tome`` themselves take on all blocks of a UNet.

    PYTHONPATH=tests python -m benchmarks.attach
    PYTHONPATH=tests python -m benchmarks.attach --model sd15-tiny-random --repeats 50
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks import pages
from benchmarks.random_models import RANDOM_UNETS, random_model
from benchmarks.timing import Spread, measure_seconds


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(RANDOM_UNETS), default="sd15-random", metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="timed runs (default: 20)")
    args = parser.parse_args(argv)
    from ppdiffusers_tome import apply_tome, get_tome, remove_tome

    unet = random_model(args.model)
    seconds: dict[str, list[float]] = {"apply_tome": [], "remove_tome": []}
    for _ in range(args.repeats):
        seconds["apply_tome"].append(measure_seconds(lambda: apply_tome(unet, max_downsample=8)))
        num_blocks = sum(get_tome(unet).blocks.values())
        seconds["remove_tome"].append(measure_seconds(lambda: remove_tome(unet)))
    print(f"{args.model}, {num_blocks} blocks; {pages.describe(pages.machine())}")
    for name, values in seconds.items():
        milliseconds = Spread.from_values([1000 * value for value in values])
        print(f"{name}: {milliseconds.format('{:.1f} ms'.format)}")


if __name__ == "__main__":
    pages.prepare()
    main()
