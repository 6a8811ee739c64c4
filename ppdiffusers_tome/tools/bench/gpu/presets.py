"""Estimate what every preset saves in a whole call of every family's denoiser, and keep it in ``estimate.json``.

    python -m ppdiffusers_tome.tools.bench.gpu.presets --page docs/en/guides/gpu.md

Needs Paddle 2.6, as ``roofline`` does, and measures as little. The denoiser's layers are those of ``families``; what
merging costs beside them is what ``roofline`` counts in a traced program.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.methods import CHOSEN, METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.bench.block import PARTITION, STAGES, BlockCase, todo
from ppdiffusers_tome.tools.bench.gpu.cost import DEVICES, Cost, seconds_of
from ppdiffusers_tome.tools.bench.gpu.estimate import FILE, FROM_SOURCE, Estimate, table
from ppdiffusers_tome.tools.bench.gpu.families import FAMILIES, SIZES, Family
from ppdiffusers_tome.tools.bench.gpu.roofline import costs_of
from ppdiffusers_tome.tools.bench.gpu.trace import trace
from ppdiffusers_tome.tools.bench.gpu.unet import Attentions
from ppdiffusers_tome.tools.bench.marked_page import write_between

BEGIN, END = (
    "<!-- what follows is made by ppdiffusers_tome.tools.bench.gpu.presets -->",
    "<!-- what ppdiffusers_tome.tools.bench.gpu.presets makes ends here -->",
)


def computed(family: Family, pixels: int) -> Iterator[Estimate]:
    """One family at one size, on every device."""
    unmerged = family.denoiser.costs(pixels, family.batch, lambda level, tokens: tokens)
    merged = {name: merged_costs(family, pixels, ToMeConfig.preset(name)) for name in presets()}
    for device in DEVICES:
        took = {name: _milliseconds(seconds_of(costs, device)) for name, costs in merged.items()}
        yield Estimate(family.name, pixels, device.name, _milliseconds(seconds_of(unmerged, device)), took)


def merged_costs(family: Family, pixels: int, config: ToMeConfig) -> list[Cost]:
    """A call with merging: fewer keys where it reaches, and what it takes to choose them.

    Raises:
        SystemExit: the method does more than leave keys out, which is not counted here.
    """
    if METHODS[config.method].keys != CHOSEN:
        sys.exit(f"what method={config.method!r} costs in a whole call is not counted; add it beside todo")
    attentions = family.denoiser.attentions(pixels)
    finest = min(each.level for each in attentions)
    levels = config.levels or [each.level for each in attentions if each.level <= (config.max_downsample or finest)]

    def left(level: int, tokens: int) -> int:
        side = math.isqrt(tokens)
        return tokens - (Grid(side, side).num_merged(config.ratio_at(level)) if level in levels else 0)

    costs = family.denoiser.costs(pixels, family.batch, left)
    for each in attentions:
        if each.level in levels:
            costs += _choosing(each, family.batch, config)
    return costs


def _choosing(attentions: Attentions, batch: int, config: ToMeConfig) -> list[Cost]:
    """The partition of a grid, once, and in every attention the tokens that give keys. (Text is not counted.)"""
    side, ratio = attentions.side, config.ratio_at(attentions.level)
    case = BlockCase(batch, side, side, attentions.channels, ratio)
    operators = trace(partial(todo, stride=(config.sx, config.sy)), case)
    return costs_of(operators, (PARTITION,)) + attentions.number * costs_of(operators, STAGES)


def _milliseconds(seconds: float) -> float:
    return float(f"{1e3 * seconds:.5g}")


def written(rows: list[Estimate]) -> str:
    """The text of ``estimate.json``, an estimate a line."""
    return "[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n"


def page() -> str:
    """What is kept, as docs/en/guides/gpu.md shows it: a table a device."""
    tables = [f"On an {device.name}:\n\n{table(device.name).markdown()}" for device in DEVICES]
    return "\n".join([*tables, f"\\{FROM_SOURCE}"])  # a star that begins no list


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="write the tables into this page too; they are printed in any case")
    given = parser.parse_args()
    rows = [each for family in FAMILIES.values() for pixels in SIZES for each in computed(family, pixels)]
    FILE.write_text(written(rows), encoding="utf-8")
    if given.page:
        write_between(given.page, BEGIN, END, page())
    print(page())


if __name__ == "__main__":
    main()
