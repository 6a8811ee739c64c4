"""Seconds inside the blocks that merge, matching, merging and unmerging included.

Hooks time them: they run outside of a block's ``forward``, and so of all that merging does there. The clock's hook is
the first of a block to run before it and the last to run after it, so it times a user's own hooks too. The port puts
another class in a block's place, which leaves its hooks alone, so one clock serves the unmerged pipeline, the port and
ours, on the very same blocks.

On a GPU every block waits for the device before and after, or its seconds would be those of another. That makes the
picture as a whole slower, which is then better timed in a draw without a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ppdiffusers_tome.patching.blocks import MergeableBlock, find_blocks, select_blocks
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.measure.clock import DeviceClock


def merging_levels(pipe: Any, configs: Iterable[ToMeConfig]) -> tuple[int, ...]:
    """The levels, finest first, at which at least one of some settings merges. All are compared by these."""
    denoisers = list(_sites(pipe))
    merging = (site for config in configs for sites in denoisers for site in select_blocks(sites, config))
    return tuple(sorted({site.level for site in merging}))


@contextmanager
def timed_blocks(pipe: Any) -> Iterator[dict[int, float]]:
    """Time every block of a pipeline's denoisers that could merge.

    What is applied to the pipeline must be on it already.

    Yields:
        seconds by level (1, 2, 4 or 8 times smaller than the latent), summed over blocks and calls as they run.
    """
    seconds: dict[int, float] = {}
    handles = []
    for sites in _sites(pipe):
        for site in sites:
            seconds.setdefault(site.level, 0.0)
            clock = _BlockClock(site.level, seconds)
            start = site.block.register_forward_pre_hook(clock.start)
            site.block._forward_pre_hooks.move_to_end(start._hook_id, last=False)
            handles += [start, site.block.register_forward_post_hook(clock.stop)]
    try:
        yield seconds
    finally:
        for handle in handles:
            handle.remove()


class _BlockClock:
    """The hooks on one block."""

    def __init__(self, level: int, seconds: dict[int, float]) -> None:
        self._level, self._seconds = level, seconds

    def start(self, block: Any, inputs: Any) -> Any:
        self._clock = DeviceClock()

    def stop(self, block: Any, inputs: Any, output: Any) -> Any:
        self._seconds[self._level] += self._clock.lap()


def _sites(pipe: Any) -> Iterator[list[MergeableBlock]]:
    for _, model in list_models(pipe):
        yield find_blocks(model)
