"""Measure how the cost of merging grows with the tokens, beside the port.

    PYTHONPATH=tests python -m benchmarks.growth
    PYTHONPATH=tests python -m benchmarks.growth --sides 32 64 128 --tile 8

Grids are square. The variants take turns in one process per side, without those that run out of memory. The script
writes growth.md, growth.json and growth.png.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import pages
from benchmarks.block import MATCH, OURS, BlockCase
from benchmarks.overhead import Peak, measure, measure_peaks
from benchmarks.timing import Spread
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.measure.units import format_bytes

# Nothing is reused here.
_NAMES = {"ours": "this package", "ours, tile and reuse": "this package, in tiles", "port": "ppdiffusers' port"}


@dataclass(frozen=True)
class Row:
    """One grid of ``side`` by ``side`` tokens.

    Attributes:
        side: of the grid, in tokens.
        match, total: milliseconds of matching, and of match, merge and unmerge, by variant; without those that ran
            out of memory.
        peaks: memory by variant; None for one that ran out of it.
    """

    side: int
    match: dict[str, Spread]
    total: dict[str, Spread]
    peaks: dict[str, Peak | None]


def main(argv: Sequence[str] | None = None) -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 128, 256], metavar="N",
                        help="sides of the grids in tokens, an eighth of the image's (default: 64 128 256)")
    for name, default in (("batch", 2), ("channels", 320), ("tile", 16), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X")
    args = pages.parse(parser, argv, "growth")
    ToMeConfig(ratio=args.ratio, tile=args.tile)
    if min(args.sides) < 8 or len(set(args.sides)) < 2:
        parser.error(f"--sides {args.sides} must be two different sides or more, each of 8 tokens or more")
    settings = {name: getattr(args, name) for name in ("batch", "channels", "ratio", "tile")}
    rows = [_measure_side(BlockCase(**settings), side, args.repeats) for side in sorted(set(args.sides))]
    about = {**settings, "repeats": args.repeats, **pages.machine()}
    notes = [
        pages.describe(about),
        "milliseconds of one block: median (lowest to highest)",
        "memory: the most that tensors take beyond input and results",
    ]
    text = pages.page("How the cost of token merging grows", notes, _table(rows))
    pages.write(args, "growth", text, {"run": about, "rows": [asdict(row) for row in rows]})
    _plot(rows).savefig(args.output / "growth.png", dpi=100)


def _measure_side(case: BlockCase, side: int, repeats: int) -> Row:
    here = replace(case, height=side, width=side, blocks=1)
    peaks = measure_peaks(here)
    fitting = [name for name, peak in peaks.items() if peak is not None]
    spreads = pages.run_in_child(measure, here, repeats, fitting)
    match, total = ({name: by[stage] for name, by in spreads.items()} for stage in (MATCH, "all"))
    return Row(side, match, total, peaks)


def _table(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        for name, peak in row.peaks.items():
            figures = ["out of memory", "", "", ""]
            if peak is not None:
                match = row.match[name]
                times = f"{row.match[OURS].median / match.median:.1f}x" if OURS in row.match else ""
                spreads = [spread.format("{:.1f}".format) for spread in (match, row.total[name])]
                figures = [*spreads, times, format_bytes(peak.working)]
            cells.append([f"{row.side}x{row.side}", _NAMES.get(name, name), *figures])
    headings = ["tokens", "", "match", "match + merge + unmerge", "exact / this (match)", "memory"]
    return pages.table(headings, cells, left=2)


def _plot(rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.subplots()
    for name in rows[0].peaks:
        points = [(row.side**2, row.total[name].median) for row in rows if name in row.total]
        if points:
            axes.plot(*zip(*points, strict=True), label=_NAMES.get(name, name), marker="o")
    axes.set(xscale="log", yscale="log", title="Match, merge and unmerge in one block",
             xlabel="tokens of an image", ylabel="milliseconds")  # fmt: skip
    axes.set_xticks([row.side**2 for row in rows], [f"{row.side}x{row.side}" for row in rows])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


if __name__ == "__main__":
    pages.prepare()
    main()
