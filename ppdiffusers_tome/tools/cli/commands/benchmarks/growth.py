"""``ppdiffusers-tome bench growth``: how the cost of merging grows with the tokens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.arguments import add_numbers, add_ratio, add_repeats, require_at_least
from ppdiffusers_tome.tools.bench.result_files import ResultFiles, described
from ppdiffusers_tome.tools.cli.arguments import add_output_arguments
from ppdiffusers_tome.tools.cli.console.output import quiet_libraries
from ppdiffusers_tome.tools.cli.console.tables import Page, Table
from ppdiffusers_tome.tools.measure.machine import measured_on
from ppdiffusers_tome.tools.measure.units import format_bytes

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.bench.growth import Row

HELP = "Measure how the cost of match, merge and unmerge grows with the tokens, compared with ppdiffusers' own port."
EXAMPLES = """one block on square grids of several sizes; all contenders alternate in one process a size, and one that
runs out of memory is left out. Writes growth.md, growth.json and growth.png.

examples:
  ppdiffusers-tome bench growth
  ppdiffusers-tome bench growth --sides 32 64 128 --tile 8
"""
# Nothing is reused here, so the second contender is named by what is left.
_SHOWN = {"ours": "ours, exact", "ours, tile and reuse": "ours, in tiles"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 128, 256], metavar="N",
                        help="sides of the grids in tokens, an eighth of the picture's (default: 64 128 256)")
    add_numbers(parser, batch=2, channels=320, tile=16)
    add_ratio(parser)
    add_repeats(parser, 3)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    require_at_least(1, args, "batch", "channels", "repeats")
    if min(args.sides) < 8 or len(set(args.sides)) < 2:
        given = " ".join(map(str, args.sides))
        raise UserError(f"--sides {given} must be two different sides or more, each of 8 tokens or more")
    if ToMeConfig(ratio=args.ratio, tile=args.tile).ratio * min(args.sides) ** 2 < 1:
        raise UserError(f"--ratio {args.ratio} merges nothing; 0.5 is usual")
    from tqdm import tqdm

    from ppdiffusers_tome.tools.bench.block import BlockCase
    from ppdiffusers_tome.tools.bench.growth import grow

    files = ResultFiles(args.output, "growth", picture=True, overwrite=args.overwrite)
    asked = {name: getattr(args, name) for name in ("batch", "channels", "ratio", "tile")}
    sides = sorted(set(args.sides))
    with quiet_libraries():
        grids = grow(BlockCase(**asked), sides, args.repeats)
        rows = list(tqdm(grids, total=len(sides), desc="grids", disable=None))
        about = {**asked, "repeats": args.repeats, **measured_on()}
        notes = [
            described(about),
            "milliseconds of one block: median (lowest to highest)",
            "memory: the most that tensors take beyond input and results",
        ]
        page = Page("How the cost of token merging grows", notes, [_table(rows)])
        files.write(page, {"run": about, "rows": [asdict(row) for row in rows]}, _plot(rows), about)


def _table(rows: Sequence[Row]) -> Table:
    """A row a grid and contender."""
    from ppdiffusers_tome.tools.bench.block import OURS

    head = ["tokens", "", "match", "match + merge + unmerge", "exact / this (match)", "memory"]
    table = Table(head, left=2)
    for row in rows:
        for name, peak in row.peaks.items():
            cells = ["out of memory", "", "", ""]
            if peak is not None:
                match = row.match[name]
                cells = [spread.format("{:.1f}".format) for spread in (match, row.total[name])]
                cells.append(f"{row.match[OURS].median / match.median:.1f}x" if OURS in row.match else "")
                cells.append(format_bytes(peak.working))
            table.add(f"{row.side}x{row.side}", _SHOWN.get(name, name), *cells)
    return table


def _plot(rows: Sequence[Row]) -> Image.Image:
    from ppdiffusers_tome.tools.bench.plots import plot_lines

    lines = {
        _SHOWN.get(name, name): [(row.side**2, row.total[name].median) for row in rows if name in row.total]
        for name in rows[0].peaks
    }
    return plot_lines(
        "Match, merge and unmerge in one block", "tokens of an image", "milliseconds",
        {name: points for name, points in lines.items() if points},
        {row.side**2: f"{row.side}x{row.side}" for row in rows},
    )  # fmt: skip
