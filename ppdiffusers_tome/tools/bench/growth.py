"""How the cost of merging in one block grows with the tokens, ours beside ppdiffusers' port until memory runs out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ppdiffusers_tome.tools.bench.block import MATCH, BlockCase
from ppdiffusers_tome.tools.bench.block_memory import Peak, peaks
from ppdiffusers_tome.tools.bench.overhead import Spreads, measure
from ppdiffusers_tome.tools.bench.own_process import in_own_process
from ppdiffusers_tome.tools.measure.spread import Spread


@dataclass(frozen=True)
class Row:
    """One grid of ``side`` by ``side`` tokens.

    Attributes:
        side: of the grid, in tokens.
        match, total: milliseconds of matching, and of match, merge and unmerge, by contender; without those that ran
            out of memory.
        peaks: memory by contender; None for one that ran out of it.
    """

    side: int
    match: dict[str, Spread]
    total: dict[str, Spread]
    peaks: dict[str, Peak | None]


def grow(case: BlockCase, sides: Sequence[int], repeats: int) -> Iterator[Row]:
    """Measure square grids of all ``sides``.

    Each side is a process of its own, in which the contenders that fit into memory alternate.
    """
    for side in sides:
        here = replace(case, height=side, width=side, blocks=1)
        memory = peaks(here)
        fitting = [name for name, peak in memory.items() if peak is not None]
        (spreads,) = in_own_process(_measured, here, repeats, fitting)
        match, total = ({name: by[stage] for name, by in spreads.items()} for stage in (MATCH, "all"))
        yield Row(side, match, total, memory)


def _measured(case: BlockCase, repeats: int, contenders: Sequence[str]) -> Iterator[Spreads]:
    yield measure(case, repeats, contenders=contenders)
