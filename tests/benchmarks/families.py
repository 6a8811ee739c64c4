"""Measure a call of a tiny model of every kind in the zoo.

    PYTHONPATH=tests python -m benchmarks.families
    PYTHONPATH=tests python -m benchmarks.families --side 32 --only unet sdxl sd3

The models have random weights and few channels, so attention is most of their time where tokens are many, and matching
where they are few: the speed-up shows that merging works in a kind of model; a full-sized one has another. The script
writes families.md and families.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import pages
from benchmarks.turns import take_turns
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.measure.stats import Spread
from ppdiffusers_tome.tools.measure.timing import measure_seconds
from zoo import Specimen, specimens


def main(argv: Sequence[str] | None = None) -> None:
    parser = pages.parser(__doc__)
    names = [specimen.name for specimen in specimens()]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("--side", type=int, default=64, metavar="N", help="height and width of latents (default: 64)")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed calls of each (default: 3)")
    args = pages.parse(parser, argv, "families")
    chosen = [
        each for each in specimens() if each.reason is None and each.is_there and each.name in (args.only or names)
    ]
    rows = [_measure(each, args.side, ToMeConfig(args.ratio), args.repeats) for each in chosen]
    about = {"side": args.side, "ratio": args.ratio, "repeats": args.repeats, **pages.machine()}
    notes = [pages.describe(about), "tiny models of few channels: full-sized ones gain differently"]
    text = pages.page("What merging saves in every kind of model", notes, _table(rows))
    pages.write(args, "families", text, {"run": about, "rows": rows})


def _measure(specimen: Specimen, side: int, config: ToMeConfig, repeats: int) -> dict[str, Any]:
    """Count the tokens at the levels that merge, and time calls."""
    import paddle

    from ppdiffusers_tome import apply_tome, remove_tome
    from ppdiffusers_tome.tools.doctor.estimate import estimate_merging

    model = specimen.build()
    height, width = specimen.size or (side, side)
    merging = [each for each in estimate_merging(model, config, height, width) if each.reason is None]

    def run_unmerged() -> float:
        remove_tome(model)
        return measure_seconds(lambda: specimen.run(model, batch=2, height=height, width=width))

    def run_merged() -> float:
        apply_tome(model, config)
        return measure_seconds(lambda: specimen.run(model, batch=2, height=height, width=width))

    with paddle.no_grad():
        seconds = take_turns({"unmerged": run_unmerged, "merged": run_merged}, repeats)
    return {
        "name": specimen.name,
        "about": specimen.about,
        "grids": [str(each.grid) for each in merging],
        "tokens": [each.grid.num_tokens for each in merging],
        "tokens_left": [each.grid.num_tokens - each.num_merged for each in merging],
        "seconds": asdict(Spread.from_values(seconds["unmerged"])),
        "merged_seconds": asdict(Spread.from_values(seconds["merged"])),
        "speed_up": asdict(Spread.from_quotients(seconds["unmerged"], seconds["merged"])),
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        (
            row["about"],
            ", ".join(row["grids"]),
            ", ".join(f"{n} -> {left}" for n, left in zip(row["tokens"], row["tokens_left"], strict=True)),
            f"{row['seconds']['median']:.3f} -> {row['merged_seconds']['median']:.3f}",
            Spread(**row["speed_up"]).format("{:.2f}x".format),
        )
        for row in rows
    ]
    headings = ["model", "grids that merge", "tokens that attention sees", "seconds of a call", "speed-up"]
    return pages.table(headings, cells, left=4)


if __name__ == "__main__":
    pages.prepare()
    main()
