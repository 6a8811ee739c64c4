"""``ppdiffusers-tome bench overhead``: what merging itself costs, beside the port."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.drawing.arguments import add_output_arguments

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.bench.overhead import Problem

HELP = "Measure what match, merge and unmerge cost, beside ppdiffusers' own port."
EXAMPLES = """one block's match, merge and unmerge and one denoising step of several blocks, all contenders
alternating in one process; medians with their spread, and the memory that Paddle's tensors take beyond the input.
Writes overhead.md and overhead.json.

examples:
  ppdiffusers-tome bench overhead
  ppdiffusers-tome bench overhead --torch-python ~/torch-env/bin/python
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tokens = parser.add_argument_group("the tokens (default: Stable Diffusion 1.5's finest level at 512x512)")
    for name, default in (("batch", 2), ("grid-height", 64), ("grid-width", 64), ("channels", 320)):
        tokens.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    tokens.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")
    tokens.add_argument("--blocks", type=int, default=5, metavar="N", help="blocks on this grid (default: 5)")
    fast = parser.add_argument_group("cheaper matching, for the second column")
    fast.add_argument("--tile", type=int, default=16, metavar="N", help="default: 16")
    fast.add_argument("--reuse-steps", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="timed runs (default: 15)")
    parser.add_argument("--torch-python", type=Path, metavar="FILE",
                        help="python of an environment with torch and tomesd, for a column of theirs")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from ppdiffusers_tome.tools.bench.overhead import measure, measured_on, peaks

    problem = _problem(args)
    from ppdiffusers_tome.exporting.files import prepare_folder, write_whole
    from ppdiffusers_tome.tools.console.output import quiet_libraries, say

    paths = prepare_folder(args.output, ["overhead.md", "overhead.json"], overwrite=args.overwrite)
    with quiet_libraries():
        spreads, memory = measure(problem, args.repeats, args.torch_python), peaks(problem)
        told = {**asdict(problem), "repeats": args.repeats, **measured_on()}
        table = _markdown(told, spreads, memory)
        found = {
            "run": told,
            "milliseconds": {name: {s: asdict(spread) for s, spread in by.items()} for name, by in spreads.items()},
            "peak_bytes": {name: peak and asdict(peak) for name, peak in memory.items()},
        }
        write_whole(paths[0], lambda file: file.write(table.encode()), overwrite=args.overwrite)
        write_whole(paths[1], lambda file: file.write((json.dumps(found, indent=2) + "\n").encode()),
                    overwrite=args.overwrite)
        say(table)
        for path in paths:
            say(str(path))


def _problem(args: argparse.Namespace) -> Problem:
    """The arguments, checked."""
    from ppdiffusers_tome.tools.bench.overhead import Problem

    for name in ("batch", "grid_height", "grid_width", "channels", "blocks", "repeats"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)} must be 1 or more")
    ToMeConfig(ratio=args.ratio, tile=args.tile, reuse_steps=args.reuse_steps)
    problem = Problem(args.batch, args.grid_height, args.grid_width, args.channels, args.ratio, args.blocks,
                      args.tile, args.reuse_steps)
    if problem.grid.num_merged(args.ratio) == 0 or problem.grid.num_cells(2, 2) == 0:
        grid = f"{args.grid_height}x{args.grid_width}"
        raise UserError(f"--ratio {args.ratio} of a {grid} grid merges nothing; enlarge one of them")
    return problem


def _markdown(told: dict, spreads: dict, peaks: dict) -> str:
    """Milliseconds, median (lowest to highest); and how many times as much as each of ours the others take."""
    from ppdiffusers_tome.tools.bench.overhead import FAST, OURS
    from ppdiffusers_tome.tools.measuring.units import format_bytes

    others = [name for name in spreads if name not in (OURS, FAST)]
    pairs = [(other, name) for other in others for name in (OURS, FAST)]
    head = [*spreads, *(f"{other} / {name}" for other, name in pairs)]
    lines = [
        "# Overhead of token merging", "",
        "- " + ", ".join(f"{name}: {value}" for name, value in told.items()),
        "- milliseconds: median (lowest to highest)",
        f"- {FAST}: tile={told['tile']}, and for a step reuse_steps={told['reuse_steps']}, reuse_blocks=True", "",
        f"| | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}",
    ]  # fmt: skip
    for row in spreads[OURS]:
        cells = [f"{by[row].median:.1f} ({by[row].low:.1f} to {by[row].high:.1f})" for by in spreads.values()]
        ratios = [f"{spreads[other][row].median / spreads[name][row].median:.1f}x" for other, name in pairs]
        lines.append(f"| {row} | {' | '.join([*cells, *ratios])} |")
    for row, meaning in (("held", "memory at the peak, results included"), ("working", "memory beyond the results")):
        memory = {name: getattr(peak, row) for name, peak in peaks.items() if peak is not None}
        cells = [format_bytes(memory.get(name)) for name in spreads]
        ratios = [f"{memory[o] / memory[n]:.1f}x" if o in memory and memory[n] else "-" for o, n in pairs]
        lines.append(f"| {meaning} | {' | '.join([*cells, *ratios])} |")
    return "\n".join(lines) + "\n"
