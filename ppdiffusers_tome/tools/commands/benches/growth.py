"""``ppdiffusers-tome bench growth``: how the cost of merging grows with the tokens."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.drawing.arguments import add_output_arguments

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.bench.growth import Row

HELP = "Measure how the cost of match, merge and unmerge grows with the tokens, beside ppdiffusers' own port."
EXAMPLES = """one block on square grids of several sizes; all contenders alternate in one process a size, and one that
runs out of memory is left out. Writes growth.md, growth.json and growth.png.

examples:
  ppdiffusers-tome bench growth
  ppdiffusers-tome bench growth --sides 32 64 128 --tile 8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 128, 256], metavar="N",
                        help="sides of the grids in tokens, an eighth of the picture's (default: 64 128 256)")
    for name, default in (("batch", 2), ("channels", 320), ("tile", 16)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed runs (default: 3)")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    for name in ("batch", "channels", "repeats"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)} must be 1 or more")
    if min(args.sides) < 8 or len(set(args.sides)) < 2:
        given = " ".join(map(str, args.sides))
        raise UserError(f"--sides {given} must be two different sides or more, each of 8 tokens or more")
    if ToMeConfig(ratio=args.ratio, tile=args.tile).ratio * min(args.sides) ** 2 < 1:
        raise UserError(f"--ratio {args.ratio} merges nothing; 0.5 is usual")
    from tqdm import tqdm

    from ppdiffusers_tome.exporting.files import prepare_folder, write_whole
    from ppdiffusers_tome.tools.bench.growth import grow
    from ppdiffusers_tome.tools.bench.overhead import Problem, measured_on
    from ppdiffusers_tome.tools.console.output import quiet_libraries, say

    files = ["growth.md", "growth.json", "growth.png"]
    paths = prepare_folder(args.output, files, overwrite=args.overwrite)
    problem = Problem(args.batch, channels=args.channels, ratio=args.ratio, tile=args.tile)
    sides = sorted(set(args.sides))
    with quiet_libraries():
        with tqdm(total=len(sides), desc="grids", disable=None) as bar:
            rows = grow(problem, sides, args.repeats, bar.update)
        told = {"batch": args.batch, "channels": args.channels, "ratio": args.ratio, "tile": args.tile,
                "repeats": args.repeats, **measured_on()}
        table = _markdown(told, rows)
        found = {"run": told, "rows": [asdict(row) for row in rows]}
        picture = _plot(rows)
        write_whole(paths[0], lambda file: file.write(table.encode()), overwrite=args.overwrite)
        write_whole(paths[1], lambda file: file.write((json.dumps(found, indent=2) + "\n").encode()),
                    overwrite=args.overwrite)
        write_whole(paths[2], lambda file: picture.save(file, "PNG"), overwrite=args.overwrite)
        say(table)
        for path in paths:
            say(str(path))


def _markdown(told: dict, rows: list[Row]) -> str:
    """A row a grid and contender."""
    from ppdiffusers_tome.tools.bench.overhead import CONTENDERS, OURS
    from ppdiffusers_tome.tools.measuring.units import format_bytes

    lines = [
        "# How the cost of token merging grows", "",
        "- " + ", ".join(f"{name}: {value}" for name, value in told.items()),
        "- milliseconds of one block: median (lowest to highest)",
        "- memory: the most that Paddle's tensors take beyond input and results", "",
        "| tokens | | match | match + merge + unmerge | exact / this (match) | memory |",
        "|---|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for row in rows:
        for name in CONTENDERS:
            peak, cells = row.peaks[name], ["out of memory", "", "", ""]
            if peak is not None:
                spreads = (row.match[name], row.total[name])
                cells = [f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})" for spread in spreads]
                cells.append(f"{row.match[OURS].median / spreads[0].median:.1f}x" if OURS in row.match else "")
                cells.append(format_bytes(peak.working))
            lines.append(f"| {row.side}x{row.side} | {_named(name)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _plot(rows: list[Row]) -> Image.Image:
    from ppdiffusers_tome.tools.bench.lines import plot_lines
    from ppdiffusers_tome.tools.bench.overhead import CONTENDERS

    lines = {
        _named(name): [(row.side**2, row.total[name].median) for row in rows if name in row.total]
        for name in CONTENDERS
    }
    return plot_lines(
        "Match, merge and unmerge in one block", "tokens of an image", "milliseconds",
        {name: points for name, points in lines.items() if points},
        {row.side**2: f"{row.side}x{row.side}" for row in rows},
    )  # fmt: skip


def _named(name: str) -> str:
    """Nothing is reused here, so the second contender is named by what is left."""
    from ppdiffusers_tome.tools.bench.overhead import FAST, OURS

    return {OURS: "ours, exact", FAST: "ours, in tiles"}.get(name, name)
