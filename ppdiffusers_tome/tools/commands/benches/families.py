"""``ppdiffusers-tome bench families``: what merging saves in every kind of model, on the zoo's at a larger size."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.doctor.zoo import Specimen, specimens
from ppdiffusers_tome.tools.drawing.arguments import add_output_arguments

HELP = "Measure one call of a model of every kind, unmerged and merged."
EXAMPLES = """models are the tiny ones of the zoo, with random weights, on a larger latent. Their channels are few, so
attention is most of their time where tokens are many, and matching where they are few: the speed-up tells that merging
works in a kind of model, not what a full-sized one gains. Writes families.md and families.json.

examples:
  ppdiffusers-tome bench families
  ppdiffusers-tome bench families --side 32 --only unet sdxl sd3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [specimen.name for specimen in specimens()]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("--side", type=int, default=64, metavar="N", help="height and width of latents (default: 64)")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed calls of each (default: 3)")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    for name, least in (("side", 16), ("repeats", 1)):
        if getattr(args, name) < least:
            raise UserError(f"--{name} {getattr(args, name)} must be {least} or more")
    config = ToMeConfig(args.ratio)
    from tqdm import tqdm

    from ppdiffusers_tome.exporting.files import prepare_folder, write_whole
    from ppdiffusers_tome.tools.bench.overhead import measured_on
    from ppdiffusers_tome.tools.console.output import quiet_libraries, say

    paths = prepare_folder(args.output, ["families.md", "families.json"], overwrite=args.overwrite)
    chosen = [each for each in specimens() if each.reason is None and each.name in (args.only or [each.name])]
    if not chosen:
        raise UserError(f"--only {' '.join(args.only)}: nothing merges in these; ppdiffusers-tome doctor tells why")
    with quiet_libraries():
        rows = [_measured(each, args.side, config, args.repeats) for each in tqdm(chosen, desc="models", disable=None)]
        told = {"side": args.side, "ratio": args.ratio, "repeats": args.repeats, **measured_on()}
        table = _markdown(told, rows)
        found = json.dumps({"run": told, "rows": rows}, indent=2) + "\n"
        write_whole(paths[0], lambda file: file.write(table.encode()), overwrite=args.overwrite)
        write_whole(paths[1], lambda file: file.write(found.encode()), overwrite=args.overwrite)
        say(table)
        for path in paths:
            say(str(path))


def _measured(specimen: Specimen, side: int, config: ToMeConfig, repeats: int) -> dict[str, Any]:
    """One row: the tokens at the levels that merge, and seconds of a call, the two taking turns."""
    import paddle

    from ppdiffusers_tome.api import apply_tome
    from ppdiffusers_tome.attaching.applying import remove_tome
    from ppdiffusers_tome.tools.doctor.estimate import prognoses
    from ppdiffusers_tome.tools.measuring.clock import synchronize

    model = specimen.build()
    height, width = specimen.size or (side, side)
    merging = [each for each in prognoses(model, config, height, width, timed=False) if each.reason is None]
    row = {
        "name": specimen.name,
        "about": specimen.about,
        "grids": [f"{each.grid.height}x{each.grid.width}" for each in merging],
        "tokens": [each.grid.num_tokens for each in merging],
        "left": [each.grid.num_tokens - each.num_merged for each in merging],
    }

    @paddle.no_grad()
    def seconds() -> float:
        synchronize()
        start = time.perf_counter()
        specimen.run(model, batch=2, height=height, width=width)
        synchronize()
        return time.perf_counter() - start

    plain, merged = [], []
    for _ in range(repeats + 1):
        remove_tome(model)
        plain.append(seconds())
        apply_tome(model, config)
        merged.append(seconds())
    # The first of each set things up.
    gains = [one / other for one, other in zip(plain[1:], merged[1:], strict=True)]
    row["seconds"], row["merged_seconds"] = statistics.median(plain[1:]), statistics.median(merged[1:])
    row["speed_up"] = [statistics.median(gains), min(gains), max(gains)]
    return row


def _markdown(told: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = [
        "# What merging saves in every kind of model", "",
        "- " + ", ".join(f"{name}: {value}" for name, value in told.items()),
        "- tiny models of the zoo, of few channels: shows that merging works, not what a full-sized model gains", "",
        "| model | grids that merge | tokens that attention sees | seconds of a call | speed-up |",
        "|---|---|---|---|---:|",
    ]  # fmt: skip
    for row in rows:
        tokens = ", ".join(f"{n} -> {left}" for n, left in zip(row["tokens"], row["left"], strict=True))
        gain, low, high = row["speed_up"]
        lines.append(
            f"| {row['about']} | {', '.join(row['grids'])} | {tokens} | "
            f"{row['seconds']:.3f} -> {row['merged_seconds']:.3f} | {gain:.2f}x ({low:.2f}x to {high:.2f}x) |"
        )
    return "\n".join(lines) + "\n"
