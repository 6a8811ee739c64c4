"""Significant differences of configurations, by their differences on each image.

Medians whose intervals overlap may well differ, as both vary with the images. The difference on the same image, of the
same prompt and noise, varies far less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

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
_MAX_NAMED_PAIRS = 10


@dataclass(frozen=True)
class Difference:
    """The difference of two configurations in one measure.

    Attributes:
        measure: of ``MEASURES``.
        first, second: names of the configurations.
        median: of the first's value minus the second's, over the images.
    """

    measure: str
    first: str
    second: str
    median: Median

    @property
    def is_significant(self) -> bool:
        """True if the interval excludes 0."""
        ends = self.median.interval
        return ends is not None and not ends[0] <= 0 <= ends[1]

    def __str__(self) -> str:
        """``+3.1 [2.2, 4.0]``, or ``~+0.1 [-0.3, 0.5]`` if it is not significant."""
        return ("" if self.is_significant else "~") + self.median.format(MEASURES[self.measure][1])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {
            "measure": self.measure, "first": self.first, "second": self.second, **self.median.to_dict(),
            "significant": self.is_significant,
        }  # fmt: skip


def compare_rows(rows: Sequence[Row]) -> list[Difference]:
    """Compare every two configurations but the unmerged one in every measure."""
    merged = [row for row in rows if row.configuration.name != UNMERGED]
    return [
        Difference(measure, first.configuration.name, second.configuration.name,
                   subtract(first.values[measure], second.values[measure]))
        for first, second in combinations(merged, 2)
        for measure in MEASURES if measure in first.values
    ]  # fmt: skip


def subtract(first: Sequence[float], second: Sequence[float]) -> Median:
    """Return the median difference over the images; two infinite PSNRs do not differ."""
    return Median.from_values([0.0 if a == b else a - b for a, b in zip(first, second, strict=True)])


def make_table(differences: Sequence[Difference]) -> Table:
    """Make a table with one row per pair and one column per measure."""
    measures = [measure for measure in MEASURES if any(each.measure == measure for each in differences)]
    cells = {(each.first, each.second, each.measure): str(each) for each in differences}
    pairs = dict.fromkeys((each.first, each.second) for each in differences)
    rows = [[*pair, *(cells[(*pair, measure)] for measure in measures)] for pair in pairs]
    return Table(["differences", "less", *(MEASURES[measure][0] for measure in measures)], rows, left=2)


def describe(rows: Sequence[Row], differences: Sequence[Difference]) -> Iterator[str]:
    """Yield notes: which differences are significant, and whether PSNR falls with the ratio."""
    num_images = len(rows[0].samples)
    if num_images < MIN_VALUES:
        yield (
            f"no difference is significant with {counted(num_images, 'image')}: a median has an interval from "
            f"{MIN_VALUES} images on; add prompts or seeds"
        )
        return
    yield f"in brackets: {METHOD}; none where both ends are written the same"
    if not differences:
        return
    yield (
        "differences: of the first settings less the second, image by image from the same prompt and seed; significant "
        "where the interval excludes 0, and ~ marks differences that are not significant"
    )
    for measure, (name, _) in MEASURES.items():
        of_measure = [each for each in differences if each.measure == measure]
        pairs = [f"{each.first} and {each.second}" for each in of_measure if not each.is_significant]
        if pairs:
            more = f"; and {len(pairs) - _MAX_NAMED_PAIRS} more pairs" if len(pairs) > _MAX_NAMED_PAIRS else ""
            yield f"{name}: not significant: {'; '.join(pairs[:_MAX_NAMED_PAIRS])}{more}"
        elif of_measure:
            yield f"{name}: all differences are significant"
    yield from _describe_falls(rows)


def _describe_falls(rows: Sequence[Row]) -> Iterator[str]:
    """Yield whether the PSNR of each family falls with its ratio."""
    for family in dict.fromkeys(row.configuration.family for row in rows):
        by_ratio = _sort_by_ratio([row for row in rows if row.configuration.family == family])
        exceptions = []
        for (low, low_row), (high, high_row) in pairwise(by_ratio):
            fall = Difference("psnr_db", "", "", subtract(low_row.values["psnr_db"], high_row.values["psnr_db"]))
            if not fall.is_significant:
                exceptions.append(f"from {low:g} to {high:g} the fall is not significant")
            elif fall.median.median < 0:
                exceptions.append(f"from {low:g} to {high:g} it rises")
        if len(by_ratio) > 1:
            (low, first), (high, last) = by_ratio[0], by_ratio[-1]
            loss = subtract(first.values["psnr_db"], last.values["psnr_db"]).format("{:.1f}".format)
            falls = f"does not fall with every step of the ratio ({'; '.join(exceptions)})" if exceptions else (
                "falls with every step of the ratio"
            )
            yield f"{family}: PSNR {falls}; it loses {loss} dB from {low:g} to {high:g}"


def _sort_by_ratio(rows: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return the rows of a family, if they differ in the ratio alone."""
    configs = [row.configuration.tome for row in rows if row.configuration.tome is not None]
    by_ratio = {config.ratio: row for config, row in zip(configs, rows, strict=False)}
    is_family = len(by_ratio) == len(rows) and len({replace(config, ratio=0) for config in configs}) == 1
    if not is_family or not all(isinstance(ratio, float) for ratio in by_ratio):
        return []
    return sorted((ratio, row) for ratio, row in by_ratio.items() if ratio > 0)  # type: ignore[misc,operator]
