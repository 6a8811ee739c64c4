"""Which settings differ: by their differences picture by picture, of the same prompt from the same noise.

Two medians whose intervals overlap may well differ, as both move with the pictures. What one setting loses on the very
picture on which another loses less tells them apart with far fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

from ppdiffusers_tome.tools.cli.console.tables import Table
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluate.intervals import FEWEST, METHOD, Median, with_interval
from ppdiffusers_tome.tools.measure.units import counted

PSNR, SSIM, FLIP, BLOCK_SPEED_UP, SPEED_UP = "PSNR (dB)", "SSIM", "FLIP", "speed-up of blocks", "speed-up"
# How differences in a measure are written.
MEASURES: Mapping[str, Callable[[float], str]] = {
    PSNR: "{:+.1f}".format,
    SSIM: "{:+.3f}".format,
    FLIP: "{:+.3f}".format,
    BLOCK_SPEED_UP: "{:+.2f}x".format,
    SPEED_UP: "{:+.2f}x".format,
}
_MOST_PAIRS = 10  # that are named in a sentence

# Of a configuration, by measure: a value a picture, in the same order for all configurations.
Values = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Difference:
    """Between two configurations in one measure.

    Attributes:
        measure: of ``MEASURES``.
        one, other: their names.
        of: the one's value less the other's, picture by picture.
    """

    measure: str
    one: str
    other: str
    of: Median

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.of.interval is not None and not self.of.interval[0] <= 0 <= self.of.interval[1]

    @property
    def reversed(self) -> Difference:
        """The other less the one."""
        of = self.of
        ends = None if of.interval is None else (-of.interval[1], -of.interval[0])
        return Difference(self.measure, self.other, self.one, Median(-of.median, -of.high, -of.low, ends))

    def __str__(self) -> str:
        """``+3.1 [2.2, 4.0]``, and ``~+0.1 [-0.3, 0.5]`` where the difference is not significant."""
        written = with_interval(self.of.median, self.of.interval, MEASURES[self.measure])
        return written if self.is_significant else f"~{written}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, as ``Median`` has them."""
        of = self.of.to_dict()
        return {"measure": self.measure, "one": self.one, "other": self.other, **of, "significant": self.is_significant}


def differences(measured: Sequence[tuple[Configuration, Values]]) -> list[Difference]:
    """Of every two configurations but the unmerged one, in every measure that both have."""
    merged = [(each.name, values) for each, values in measured if each.name != UNMERGED]
    return [
        Difference(measure, one, other, _less(values[measure], others[measure]))
        for (one, values), (other, others) in combinations(merged, 2)
        for measure in MEASURES
        if measure in values and measure in others
    ]


def _less(values: Sequence[float], others: Sequence[float]) -> Median:
    """Identical pictures have an infinite PSNR; two of them do not differ."""
    return Median.of([0.0 if one == other else one - other for one, other in zip(values, others, strict=True)])


def in_psnr(configuration: Mapping[str, Any], other: Mapping[str, Any]) -> Median:
    """Of two configurations as ``evaluate.json`` has them: the one's PSNR less the other's, in dB.

    Raises:
        KeyError: the other has no picture of the same prompt and seed.
    """
    values, others = _psnr_by_picture(configuration), _psnr_by_picture(other)
    return _less(list(values.values()), [others[picture] for picture in values])


def _psnr_by_picture(configuration: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    return {
        (each["prompt"], each["seed"]): math.inf if each["psnr_db"] is None else float(each["psnr_db"])
        for each in configuration["samples"]
    }


def table(found: Sequence[Difference]) -> Table:
    """A row a pair, a column a measure."""
    measures = [measure for measure in MEASURES if any(each.measure == measure for each in found)]
    cells = {(each.one, each.other, each.measure): str(each) for each in found}
    pairs = dict.fromkeys((each.one, each.other) for each in found)
    rows = [[*pair, *(cells[(*pair, measure)] for measure in measures)] for pair in pairs]
    return Table(["differences", "less", *measures], rows, left=2)


def describe_differences(
    measured: Sequence[tuple[Configuration, Values]], found: Sequence[Difference]
) -> Iterator[str]:
    """Which differences are significant, measure by measure, and whether PSNR falls with the ratio."""
    pictures = max(len(values) for _, each in measured for values in each.values())
    if pictures < FEWEST:
        yield (
            f"no difference is significant with {counted(pictures, 'picture')}: a median has an interval from "
            f"{FEWEST} pictures on; add prompts or seeds"
        )
        return
    yield f"in brackets: {METHOD}; none where both ends are written the same"
    if not found:
        return
    yield (
        "differences: of the first settings less the second, picture by picture from the same prompt and seed; "
        "significant where the interval leaves 0 out, and ~ marks differences that are not significant"
    )
    for measure in MEASURES:
        own = [each for each in found if each.measure == measure]
        alike = [f"{each.one} and {each.other}" for each in own if not each.is_significant]
        if own and not alike:
            yield f"{measure}: all differences are significant"
        elif own:
            more = f"; and {len(alike) - _MOST_PAIRS} more pairs" if len(alike) > _MOST_PAIRS else ""
            yield f"{measure}: not significant: {'; '.join(alike[:_MOST_PAIRS])}{more}"
    yield from _falls([each for each, _ in measured], found)


def _falls(configurations: Sequence[Configuration], found: Sequence[Difference]) -> Iterator[str]:
    """Of every family with several ratios: whether PSNR falls from each to the next."""
    falls: dict[tuple[str, str], Difference] = {}
    for each in found:
        if each.measure == PSNR:
            falls |= {(each.one, each.other): each, (each.other, each.one): each.reversed}
    for family in dict.fromkeys(each.family for each in configurations):
        own = [each for each in configurations if each.family == family and each.tome is not None]
        ratios = {each.tome.ratio: each.name for each in own if each.tome and isinstance(each.tome.ratio, int | float)}
        others = {replace(each.tome, ratio=0) for each in own if each.tome}
        if len(ratios) < len(own) or len(others) > 1:  # they differ in something else as well
            continue
        order = sorted(ratio for ratio in ratios if ratio > 0)  # nothing is lost at 0
        if len(order) < 2:
            continue
        exceptions = []
        for low, high in pairwise(order):
            fall = falls[ratios[low], ratios[high]]
            if not fall.is_significant:
                exceptions.append(f"from {low:g} to {high:g} the fall is not significant")
            elif fall.of.median < 0:
                exceptions.append(f"from {low:g} to {high:g} it rises")
        whole = falls[ratios[order[0]], ratios[order[-1]]].of
        lost = f"{with_interval(whole.median, whole.interval, '{:.1f}'.format)} dB from {order[0]:g} to {order[-1]:g}"
        falling = f"does not fall with every step of the ratio ({'; '.join(exceptions)})" if exceptions else (
            "falls with every step of the ratio"
        )
        yield f"{family}: PSNR {falling}; it loses {lost}"
