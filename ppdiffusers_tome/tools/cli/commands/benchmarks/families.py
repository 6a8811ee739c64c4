"""``ppdiffusers-tome bench families``: what merging saves in every kind of model, on the zoo's at a larger size."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.arguments import add_ratio, add_repeats, require_at_least
from ppdiffusers_tome.tools.bench.result_files import ResultFiles, described
from ppdiffusers_tome.tools.cli.arguments import add_output_arguments
from ppdiffusers_tome.tools.cli.console.output import quiet_libraries
from ppdiffusers_tome.tools.cli.console.tables import Page, Table
from ppdiffusers_tome.tools.measure.clock import seconds_of
from ppdiffusers_tome.tools.measure.machine import measured_on
from ppdiffusers_tome.tools.measure.rounds import take_turns
from ppdiffusers_tome.tools.measure.spread import Spread

HELP = "Measure one call of a model of every kind, unmerged and merged."
EXAMPLES = """models are the tiny ones of the zoo, with random weights, on a larger latent. Their channels are few, so
attention is most of their time where tokens are many, and matching where they are few: the speed-up shows that merging
works in a kind of model; a full-sized one has another. Writes families.md and families.json.

examples:
  ppdiffusers-tome bench families
  ppdiffusers-tome bench families --side 32 --only unet sdxl sd3
"""


@dataclass(frozen=True)
class Row:
    """One kind of model.

    Attributes:
        name, about: of the specimen.
        grids: that merge, such as ``64x64``.
        tokens, left: of each grid, before and after merging.
        seconds, merged_seconds: of a call.
        speed_up: of merging, round by round.
    """

    name: str
    about: str
    grids: list[str]
    tokens: list[int]
    left: list[int]
    seconds: Spread
    merged_seconds: Spread
    speed_up: Spread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="NAME", help="files of tests/zoo without .py (default: all)")
    parser.add_argument("--side", type=int, default=64, metavar="N", help="height and width of latents (default: 64)")
    add_ratio(parser)
    add_repeats(parser, 3, "timed calls of each")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    require_at_least(16, args, "side")
    require_at_least(1, args, "repeats")
    config = ToMeConfig(args.ratio)
    from tqdm import tqdm

    files = ResultFiles(args.output, "families", overwrite=args.overwrite)
    from zoo import specimens  # type: ignore[import-not-found]

    chosen = [each for each in specimens() if each.reason is None and each.name in (args.only or [each.name])]
    if not chosen:
        raise UserError(f"--only {' '.join(args.only)}: nothing merges in these; ppdiffusers-tome doctor says why")
    with quiet_libraries():
        absent = [each for each in chosen if not each.is_there]
        if args.only and absent:
            raise UserError(f"--only {absent[0].name}: needs ppdiffusers {absent[0].since}")
        chosen = [each for each in chosen if each not in absent]
        rows = [_measured(each, args.side, config, args.repeats) for each in tqdm(chosen, desc="models", disable=None)]
        about = {"side": args.side, "ratio": args.ratio, "repeats": args.repeats, **measured_on()}
        notes = [
            described(about),
            "tiny models of the zoo, of few channels: shows that merging works; full-sized models gain differently",
        ]
        page = Page("What merging saves in every kind of model", notes, [_table(rows)])
        files.write(page, {"run": about, "rows": [asdict(row) for row in rows]})


def _measured(specimen: Any, side: int, config: ToMeConfig, repeats: int) -> Row:
    """The tokens at the levels that merge, and seconds of a call, the two taking turns."""
    import paddle

    from ppdiffusers_tome.api import apply_tome
    from ppdiffusers_tome.patching.apply import remove_tome
    from ppdiffusers_tome.tools.doctor.estimate import estimate_merging

    model = specimen.build()
    height, width = specimen.size or (side, side)
    merging = [each for each in estimate_merging(model, config, height, width) if each.reason is None]

    def seconds() -> float:
        return seconds_of(lambda: specimen.run(model, batch=2, height=height, width=width))

    def unmerged() -> float:
        remove_tome(model)
        return seconds()

    def merged() -> float:
        apply_tome(model, config)
        return seconds()

    with paddle.no_grad():
        taken = take_turns({"unmerged": unmerged, "merged": merged}, repeats)
    return Row(
        specimen.name,
        specimen.about,
        grids=[str(each.grid) for each in merging],
        tokens=[each.grid.num_tokens for each in merging],
        left=[each.grid.num_tokens - each.num_merged for each in merging],
        seconds=Spread.of(taken["unmerged"]),
        merged_seconds=Spread.of(taken["merged"]),
        speed_up=Spread.of_quotients(taken["unmerged"], taken["merged"]),
    )


def _table(rows: list[Row]) -> Table:

    head = ["model", "grids that merge", "tokens that attention sees", "seconds of a call", "speed-up"]
    table = Table(head, left=4)
    for row in rows:
        tokens = ", ".join(f"{n} -> {left}" for n, left in zip(row.tokens, row.left, strict=True))
        seconds = f"{row.seconds.median:.3f} -> {row.merged_seconds.median:.3f}"
        table.add(row.about, ", ".join(row.grids), tokens, seconds, row.speed_up.format("{:.2f}x".format))
    return table
