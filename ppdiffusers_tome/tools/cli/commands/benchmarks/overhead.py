"""``ppdiffusers-tome bench overhead``: what merging itself costs, compared with the port."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from ppdiffusers_tome.tools.bench.block import BlockCase
    from ppdiffusers_tome.tools.bench.block_memory import Peak
    from ppdiffusers_tome.tools.bench.overhead import Spreads

HELP = "Measure what match, merge and unmerge cost, compared with ppdiffusers' own port."
EXAMPLES = """one block's match, merge and unmerge and one denoising step of several blocks, all contenders
alternating in one process; medians with their spread, and the memory that tensors take beyond the input.
Writes overhead.md and overhead.json.

examples:
  ppdiffusers-tome bench overhead
  ppdiffusers-tome bench overhead --torch-python ~/torch-env/bin/python
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tokens = parser.add_argument_group("the tokens (default: Stable Diffusion 1.5's finest level at 512x512)")
    add_numbers(tokens, batch=2, grid_height=64, grid_width=64, channels=320)
    add_ratio(tokens)
    tokens.add_argument("--blocks", type=int, default=5, metavar="N", help="blocks on this grid (default: 5)")
    add_numbers(parser.add_argument_group("cheaper matching, for the second column"), tile=16, reuse_steps=4)
    add_repeats(parser, 15)
    parser.add_argument("--torch-python", type=Path, metavar="FILE",
                        help="python of an environment with torch and tomesd, for a column of theirs")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from ppdiffusers_tome.tools.bench.block import FAST
    from ppdiffusers_tome.tools.bench.block_memory import peaks
    from ppdiffusers_tome.tools.bench.overhead import measure

    case = _case(args)
    files = ResultFiles(args.output, "overhead", overwrite=args.overwrite)
    with quiet_libraries():
        spreads, memory = measure(case, args.repeats, args.torch_python), peaks(case)
        about = {**asdict(case), "repeats": args.repeats, **measured_on()}
        notes = [
            described(about),
            "milliseconds: median (lowest to highest)",
            f"{FAST}: tile={case.tile}, and for a step reuse_steps={case.reuse_steps}, reuse_blocks=True",
        ]
        files.write(Page("Overhead of token merging", notes, [_table(spreads, memory)]), {
            "run": about,
            "milliseconds": {name: {s: asdict(spread) for s, spread in by.items()} for name, by in spreads.items()},
            "peak_bytes": {name: peak and asdict(peak) for name, peak in memory.items()},
        })  # fmt: skip


def _case(args: argparse.Namespace) -> BlockCase:
    """The arguments, checked."""
    from ppdiffusers_tome.tools.bench.block import BlockCase

    require_at_least(1, args, "batch", "grid_height", "grid_width", "channels", "blocks", "repeats")
    ToMeConfig(ratio=args.ratio, tile=args.tile, reuse_steps=args.reuse_steps)
    case = BlockCase(args.batch, args.grid_height, args.grid_width, args.channels, args.ratio, args.blocks,
                     args.tile, args.reuse_steps)
    if case.num_merged == 0 or case.grid.num_cells(2, 2) == 0:
        grid = f"{args.grid_height}x{args.grid_width}"
        raise UserError(f"--ratio {args.ratio} of a {grid} grid merges nothing; enlarge one of them")
    return case


def _table(spreads: Spreads, peaks: Mapping[str, Peak | None]) -> Table:
    """Milliseconds and memory of each, and how many times as much as each of ours the others take."""
    from ppdiffusers_tome.tools.bench.block import FAST, OURS

    pairs = [(other, name) for other in spreads if other not in (OURS, FAST) for name in (OURS, FAST)]
    table = Table(["", *spreads, *(f"{other} / {name}" for other, name in pairs)])
    for row in spreads[OURS]:
        cells = [by[row].format("{:.1f}".format) for by in spreads.values()]
        times = [f"{spreads[other][row].median / spreads[name][row].median:.1f}x" for other, name in pairs]
        table.add(row, *cells, *times)
    for row, meaning in (("held", "memory at the peak, results included"), ("working", "memory beyond the results")):
        memory: dict[str, Any] = {name: getattr(peak, row) for name, peak in peaks.items() if peak is not None}
        cells = [format_bytes(memory.get(name)) for name in spreads]
        times = [f"{memory[o] / memory[n]:.1f}x" if o in memory and memory.get(n) else "-" for o, n in pairs]
        table.add(meaning, *cells, *times)
    return table
