"""``ppdiffusers-tome bench``: what token merging costs, measured side by side in one run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from ppdiffusers_tome.commands.shared.arguments import add_output_arguments
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.errors import UserError

HELP = "Measure what match, merge and unmerge cost, beside ppdiffusers' own port."
EXAMPLES = """'overhead': one block's match, merge and unmerge, alternating with the port's in one process; medians with
their spread, and the memory held beyond the input. Writes overhead.md and overhead.json.

examples:
  ppdiffusers-tome bench overhead
  ppdiffusers-tome bench overhead --torch-python ~/torch-env/bin/python
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["overhead"], help="what to measure")
    tokens = parser.add_argument_group("the tokens (default: Stable Diffusion 1.5's finest level at 512x512)")
    for name, default in (("batch", 2), ("grid-height", 64), ("grid-width", 64), ("channels", 320)):
        tokens.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    tokens.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="timed runs (default: 15)")
    parser.add_argument("--torch-python", type=Path, metavar="FILE",
                        help="python of an environment with torch and tomesd, for a column of theirs")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from ppdiffusers_tome.bench.overhead import Problem, measure, measured_on, peak_bytes

    for name in ("batch", "grid_height", "grid_width", "channels", "repeats"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)} must be 1 or more")
    ToMeConfig(ratio=args.ratio)
    problem = Problem(args.batch, args.grid_height, args.grid_width, args.channels, args.ratio)
    if problem.grid.num_merged(args.ratio) == 0 or problem.grid.num_cells(2, 2) == 0:
        grid = f"{args.grid_height}x{args.grid_width}"
        raise UserError(f"--ratio {args.ratio} of a {grid} grid merges nothing; enlarge one of them")
    from ppdiffusers_tome.commands.shared.quiet import quiet_libraries, say
    from ppdiffusers_tome.pictures import prepare_folder, write_whole

    paths = prepare_folder(args.output, ["overhead.md", "overhead.json"], overwrite=args.overwrite)
    with quiet_libraries():
        spreads, peaks = measure(problem, args.repeats, args.torch_python), peak_bytes(problem)
        told = {**asdict(problem), "repeats": args.repeats, **measured_on()}
        table = _markdown(told, spreads, peaks)
        found = {
            "run": told,
            "milliseconds": {name: {s: asdict(spread) for s, spread in by.items()} for name, by in spreads.items()},
            "peak_bytes": peaks,
        }
        write_whole(paths[0], lambda file: file.write(table.encode()), overwrite=args.overwrite)
        write_whole(paths[1], lambda file: file.write((json.dumps(found, indent=2) + "\n").encode()),
                    overwrite=args.overwrite)
        say(table)
        for path in paths:
            say(str(path))


def _markdown(told: dict, spreads: dict, peaks: dict) -> str:
    """Milliseconds, median (lowest to highest), and how many times as long as ours the others take."""
    from ppdiffusers_tome.bench.overhead import OURS
    from ppdiffusers_tome.measure import format_memory

    rows = list(spreads[OURS])
    others = [name for name in spreads if name != OURS]
    head = [OURS, *others, *(f"{name} / ours" for name in others)]
    lines = [
        "# Overhead of token merging in one block", "",
        "- " + ", ".join(f"{name}: {value}" for name, value in told.items()),
        "- milliseconds: median (lowest to highest)", "",
        f"| | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}",
    ]  # fmt: skip
    for row in rows:
        cells = [f"{by[row].median:.1f} ({by[row].low:.1f} to {by[row].high:.1f})" for by in spreads.values()]
        ratios = [f"{spreads[name][row].median / spreads[OURS][row].median:.1f}x" for name in others]
        lines.append(f"| {row} | {' | '.join([*cells, *ratios])} |")
    memory = [format_memory(peaks.get(name)) for name in spreads]
    ours = peaks.get(OURS)
    ratios = [f"{peaks[n] / ours:.1f}x" if ours and peaks.get(n) else "-" for n in others]
    lines.append(f"| peak memory beyond the input | {' | '.join([*memory, *ratios])} |")
    return "\n".join(lines) + "\n"
