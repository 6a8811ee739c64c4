"""Estimate what every preset saves in a whole call of a denoiser.

    PYTHONPATH=tests python -m benchmarks.gpu_presets --page docs/measured/gpu/README.md

The script writes ``gpu_estimate.json`` beside it and the tables of the page. It needs Paddle 2.6, as
``gpu_roofline`` does, and measures as little. What merging costs is counted in a traced program.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.block import PARTITION, STAGES, BlockCase, run_todo
from benchmarks.gpu_costs import DEVICES, Cost, seconds_of
from benchmarks.gpu_joint import JointTransformer
from benchmarks.gpu_roofline import costs_of
from benchmarks.gpu_trace import trace
from benchmarks.gpu_unet import Attentions, UNet
from benchmarks.pages import presets_by_strength, replace_between
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.tools.console.tables import Table

FILE = Path(__file__).with_name("gpu_estimate.json")
SIZES = (512, 1024, 2048)  # height and width in pixels
BEGIN, END = (
    "<!-- what follows is made by benchmarks.gpu_presets -->",
    "<!-- what benchmarks.gpu_presets makes ends here -->",
)
TITLES = {
    "sd15": "Stable Diffusion 1.5", "sdxl": "SDXL", "sd3": "SD3 medium", "sd35-medium": "SD3.5 medium*",
    "sd35-large": "SD3.5 large*", "flux": "FLUX.1 dev*",
}  # fmt: skip
MEASURED = {"H200": ("sd15", "sdxl")}  # by torch_calls.py, so their estimates are not in the page
FOOTNOTE = "* needs ppdiffusers 0.29.1 or newer, from PaddleMIX's source"
_SD3_TEXT_TOKENS = 77 + 77  # CLIP's and T5's in ppdiffusers 0.29; T5 has more since SD3.5
_POOLED = 768 + 1280  # channels of both CLIP encoders


@dataclass(frozen=True)
class Family:
    """Models of one shape; ``batch`` is of one image (2 with guidance)."""

    denoiser: UNet | JointTransformer
    source: str
    batch: int = 2


FAMILIES = {
    "sd15": Family(UNet((320, 640, 1280, 1280), (1, 1, 1, 0), 1, 768), "runwayml/stable-diffusion-v1-5"),
    "sdxl": Family(
        UNet((320, 640, 1280), (0, 2, 10), 10, 2048, embeds_sizes=True), "stabilityai/stable-diffusion-xl-base-1.0"
    ),
    "sd3": Family(
        JointTransformer(1536, 64, 24, _SD3_TEXT_TOKENS, _POOLED, normed=False),
        "stabilityai/stable-diffusion-3-medium-diffusers",
    ),
    "sd35-medium": Family(
        JointTransformer(1536, 64, 24, 77 + 256, _POOLED, second_attentions=13),
        "stabilityai/stable-diffusion-3.5-medium",
    ),
    "sd35-large": Family(
        JointTransformer(2432, 64, 38, 77 + 256, _POOLED), "stabilityai/stable-diffusion-3.5-large"
    ),
    "flux": Family(
        JointTransformer(3072, 128, 19, 512, 768, single_blocks=38, rotary=True, text_ends=False),
        "black-forest-labs/FLUX.1-dev", batch=1,
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="write the tables into this page too; they are printed in any case")
    args = parser.parse_args(argv)
    FILE.write_text(to_json([each for name in FAMILIES for each in estimate_family(name)]), encoding="utf-8")
    if args.page:
        replace_between(args.page, BEGIN, END, page())
    print(page())


def estimate_family(name: str) -> Iterator[dict[str, Any]]:
    """Estimate one family at every size on every device, in milliseconds."""
    family = FAMILIES[name]
    for pixels in SIZES:
        unmerged = family.denoiser.costs(pixels, family.batch, lambda level, tokens: tokens)
        merged = {preset: count_merged(family, pixels, ToMeConfig.preset(preset)) for preset in PRESETS}
        for device in DEVICES:
            by_preset = {preset: _milliseconds(seconds_of(costs, device)) for preset, costs in merged.items()}
            milliseconds = _milliseconds(seconds_of(unmerged, device))
            yield dict(family=name, pixels=pixels, device=device.name, unmerged=milliseconds, presets=by_preset)


def count_merged(family: Family, pixels: int, config: ToMeConfig) -> list[Cost]:
    """Count a call with merging: fewer keys, and their choice.

    Raises:
        SystemExit: the method does more than omit keys, which is not counted here.
    """
    if METHODS[config.method].compares:
        sys.exit(f"the cost of method={config.method!r} in a whole call is not counted; add it beside todo")
    attentions = family.denoiser.attentions(pixels)
    finest = min(each.level for each in attentions)
    levels = [each.level for each in attentions if each.level <= (config.max_downsample or finest)]

    def num_keys(level: int, tokens: int) -> int:
        side = math.isqrt(tokens)
        return tokens - (Grid(side, side).num_merged(config.ratio_at()) if level in levels else 0)

    costs = family.denoiser.costs(pixels, family.batch, num_keys)
    for each in attentions:
        if each.level in levels:
            costs += _choice_costs(each, family.batch, config)
    return costs


def _choice_costs(attentions: Attentions, batch: int, config: ToMeConfig) -> list[Cost]:
    """Count a grid's partition, and the choice of keys in every attention."""
    side, ratio = attentions.side, config.ratio_at()
    case = BlockCase(batch, side, side, attentions.channels, ratio)
    operators = trace(partial(run_todo, stride=(config.sx, config.sy)), case)
    return costs_of(operators, (PARTITION,)) + attentions.number * costs_of(operators, STAGES)


def _milliseconds(seconds: float) -> float:
    return float(f"{1e3 * seconds:.5g}")


def to_json(rows: Sequence[dict[str, Any]]) -> str:
    """Format the estimates as ``gpu_estimate.json``, one per line."""
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def estimate_table(device: str) -> Table:
    """Return the speed-ups that were not measured, the mildest preset first."""
    names = presets_by_strength()
    table = Table(["model", *(f"{size}x{size}" for size in SIZES)])
    rows = {(row["family"], row["pixels"], row["device"]): row for row in json.loads(FILE.read_text("utf-8"))}
    for family, title in TITLES.items():
        if family in MEASURED.get(device, ()):
            continue
        found = [rows[family, size, device] for size in SIZES]
        cells = (" ".join(f"{row['unmerged'] / row['presets'][name]:.2f}x" for name in names) for row in found)
        table.add(title, *cells)
    return table


def page() -> str:
    """Return a table per device, as docs/measured/gpu/README.md has them."""
    tables = [f"On an {device.name}:\n\n{estimate_table(device.name).markdown()}" for device in DEVICES]
    return "\n".join([*tables, f"\\{FOOTNOTE}"])  # a star that begins no list


if __name__ == "__main__":
    main()
