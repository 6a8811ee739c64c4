"""The memory that match, merge and unmerge of one block take, by contender."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ppdiffusers_tome.tools.bench.block import NAMES, STAGES, BlockCase, stages_of
from ppdiffusers_tome.tools.bench.own_process import in_own_process


@dataclass(frozen=True)
class Peak:
    """Memory of Paddle's tensors and numpy's arrays beyond the input, in bytes.

    Attributes:
        held: the most at any time, results included: the merged and the unmerged tokens.
        working: the most beyond the results that there are when a stage ends.
    """

    held: int
    working: int


def peaks(case: BlockCase) -> dict[str, Peak | None]:
    """The peak of every contender, each in a process of its own (Paddle 2.6 resets none); None where memory ran out."""
    return {name: _peak_apart(name, case) for name in NAMES}


def _peak_apart(name: str, case: BlockCase) -> Peak | None:
    try:
        (peak,) = in_own_process(_peak, name, case)
    except MemoryError:
        return None
    return peak


def _peak(name: str, case: BlockCase) -> Iterator[Peak]:
    """Runs in that process: a small case first, for whatever a first call sets up."""
    import paddle

    from ppdiffusers_tome.tools.measure.measure import tensor_bytes

    def bytes_in_use() -> list[int]:
        """Now and at the most: no less than the true peak, as the two may not have been at the same moment."""
        return [sum(both) for both in zip(tensor_bytes(), tracemalloc.get_traced_memory(), strict=True)]

    timestep, small = paddle.to_tensor([500]), replace(case, height=8, width=8, tile=4)
    x, held, working = case.tokens(), 0, 0
    with paddle.no_grad():
        for _ in stages_of(name, small)(small, small.tokens(), timestep):
            pass
        gc.collect()
        tracemalloc.start()
        before, _ = bytes_in_use()
        for stage in stages_of(name, case)(case, x, timestep):
            if stage in STAGES:
                results, peak = (value - before for value in bytes_in_use())
                held, working = max(held, peak), max(working, peak - results)
    yield Peak(held, working)
