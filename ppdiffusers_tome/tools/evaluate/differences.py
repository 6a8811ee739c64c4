"""Differences of configurations, image by image.

Medians whose intervals overlap may well differ, as both vary with the images. The difference on the same image, of the
same prompt and noise, varies far less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED
from ppdiffusers_tome.tools.measure.stats import METHOD, MIN_VALUES, Median
from ppdiffusers_tome.tools.measure.units import counted

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.evaluate.summary import Row

# The names of measures in tables, and the format of their differences.
MEASURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "psnr_db": ("PSNR (dB)", "{:+.1f}".format),
    "ssim": ("SSIM", "{:+.3f}".format),
    "flip": ("FLIP", "{:+.3f}".format),
    "block_speed_up": ("speed-up of blocks", "{:+.2f}x".format),
    "speed_up": ("speed-up", "{:+.2f}x".format),
}


def subtract(first: Sequence[float], second: Sequence[float]) -> Median:
    """Return the median difference over the images; two infinite PSNRs do not differ."""
    return Median.from_values([0.0 if a == b else a - b for a, b in zip(first, second, strict=True)])


def make_table(rows: Sequence[Row]) -> Table:
    """Make a table with one row per two configurations but the unmerged one."""
    merged = [row for row in rows if row.configuration.name != UNMERGED]
    measures = [measure for measure in MEASURES if merged and measure in merged[0].values]
    table = Table(["differences", "less", *(MEASURES[measure][0] for measure in measures)], left=2)
    for first, second in combinations(merged, 2):
        cells = [
            format_difference(subtract(first.values[measure], second.values[measure]), MEASURES[measure][1])
            for measure in measures
        ]
        table.add(first.configuration.name, second.configuration.name, *cells)
    return table


def format_difference(difference: Median, format_value: Callable[[float], str]) -> str:
    """Return ``+3.1 [2.2, 4.0]``, or ``~+0.1 [-0.3, 0.5]`` if it is not significant."""
    ends = difference.interval
    is_significant = ends is not None and not ends[0] <= 0 <= ends[1]
    return ("" if is_significant else "~") + difference.format(format_value)


def describe(num_images: int) -> list[str]:
    """Return notes about intervals and differences."""
    if num_images < MIN_VALUES:
        return [
            f"no difference is significant with {counted(num_images, 'image')}: a median has an interval from "
            f"{MIN_VALUES} images on; add prompts or seeds"
        ]
    return [
        f"in brackets: {METHOD}; none where both ends are written the same",
        "differences: of the first settings less the second, image by image from the same prompt and seed; significant "
        "where the interval excludes 0, and ~ marks differences that are not significant",
    ]
