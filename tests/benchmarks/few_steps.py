"""Measure merging in images of 1 to 8 steps.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.few_steps images emoji guided --scheduler ddim
    PYTHONPATH=tests python -m benchmarks.few_steps table

``images`` adds the PSNR of each setting and prompt to docs/measured/few_steps/images.jsonl and resumes; other work on
the machine changes nothing. ``table`` writes settings.csv, with speed-ups of the whole image from the seconds of each
kind of step in docs/measured/step_caches/costs.jsonl.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import step_caches
from benchmarks.step_caches import TOKENS, UNMERGED, Variant
from ppdiffusers_tome.settings.config import ToMeConfig

FOLDER = Path("docs/measured/few_steps")
STEPS = (1, 2, 4, 8)
BALANCED = ToMeConfig.preset("balanced")
SETTINGS = {
    "tome 0.5": TOKENS["tome 0.5"], "quality": TOKENS["quality"], "balanced": BALANCED,
    "balanced, end 0.875": replace(BALANCED, end=0.875),
    "balanced, end 0.75": replace(BALANCED, end=0.75), "balanced, end 0.5": replace(BALANCED, end=0.5),
    "balanced, start 0.1": replace(BALANCED, start=0.1),
}  # fmt: skip


def list_variants(steps: int) -> list[Variant]:
    """List the settings that so many steps can tell apart, the unmerged image first."""
    variants, seen = [Variant(UNMERGED, UNMERGED, None, steps)], set()
    for name, config in SETTINGS.items():
        kinds = tuple(config.ratio_at(step / steps) for step in range(steps))
        tokens = replace(config, start=0.0, end=1.0).summary
        if (tokens, kinds) not in seen and any(kind != 0 for kind in kinds):
            variants.append(Variant(name, "few steps", config, steps))
        seen.add((tokens, kinds))
    if steps > 1:
        variants.append(Variant(f"{steps // 2} step{'s' * (steps > 2)}", "fewer steps", None, steps // 2))
    return variants


def make_table() -> str:
    """Return the median PSNR and the speed-up of each setting as CSV."""
    costs = {row["model"]: row["seconds"] for row in step_caches.read_rows(step_caches.FOLDER / "costs.jsonl")}
    cases: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in step_caches.read_rows(FOLDER / "images.jsonl"):
        case = (row["model"], row["regime"], f"{row['guidance']:g}", row["scheduler"], str(row["size"]),
                str(row["of"]), row["name"])  # fmt: skip
        cases.setdefault(case, []).append(row)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((
        "model", "regime", "guidance", "scheduler", "size", "steps", "setting", "speed-up of the image", "psnr",
        "lowest", "images",
    ))  # fmt: skip
    for case, rows in cases.items():
        model, steps = case[0], case[5]
        seconds, kinds, values = costs[model], rows[0]["kinds"], [row["psnr"] for row in rows]
        speedup = "-"  # of a step that costs.jsonl lacks
        if seconds.keys() >= kinds.keys():
            rest = seconds["everything but the denoiser"]
            spent = rest + sum(count * seconds[kind] for kind, count in kinds.items())
            speedup = f"{(rest + int(steps) * seconds['whole']) / spent:.2f}"
        psnr = f"{statistics.median(values):.1f}", f"{min(values):.1f}"
        writer.writerow((*case, speedup, *psnr, len(rows)))
    return text.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    images = commands.add_parser("images")
    images.add_argument("model", choices=list(step_caches.PROMPTS))
    images.add_argument("regime", choices=list(step_caches.REGIMES))
    images.add_argument("--scheduler", default="ddim")
    images.add_argument("--steps", type=int, nargs="+", default=STEPS)
    images.add_argument("--images", type=int, default=step_caches.NUM_IMAGES)
    commands.add_parser("table")
    args = parser.parse_args(argv)
    if args.command == "table":
        (FOLDER / "settings.csv").write_text(make_table(), encoding="utf-8")
        return
    from benchmarks.pages import prepare

    prepare()
    for steps in args.steps:
        variants, path = list_variants(steps), FOLDER / "images.jsonl"
        step_caches.measure_images(args.model, args.regime, args.scheduler, steps, args.images, variants, path)


if __name__ == "__main__":
    main()
