"""Memory stays what it is, however often ToMe comes and goes, and over calls of ever new sizes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import tiny
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.override import Override
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# What allocators and caches may do; a leak of the smallest tensor a call, 1 KB, would be seen in gc below.
MOST_GROWTH = 8 * 2**20
# Caches of partitions and constants are full by then.
WARM = 60


@pytest.mark.parametrize("removing", [True, False], ids=["removed", "replaced"])
def test_memory_stays_when_tome_comes_and_goes(removing: bool) -> None:
    unet = tiny.unet(levels=1)
    before = tiny.snapshot(unet)
    for number in range(3 * WARM):
        if number in (0, WARM):  # the first has room made for what counting takes itself
            start = count_objects()
        tiny.run_unet(apply_tome(unet, 0.5, seed=number), 1, 8, 8)
        if removing:
            remove_tome(unet)
    end = count_objects()
    assert tiny.snapshot(remove_tome(unet)) == before
    assert end[0] <= start[0]  # states and overrides; those of earlier tests may go meanwhile
    assert end[1] - start[1] < 2 * WARM  # not one more a round, whatever else Python holds
    assert end[2] - start[2] <= MOST_GROWTH


def test_memory_stays_over_calls_of_ever_new_sizes() -> None:
    """Grids, partitions and matchings are kept for a call, or in caches that have an end."""
    unet = apply_tome(tiny.unet(), **tiny.MERGE_ALL, reuse_steps=2, tile=4)
    sizes = [(height, width) for height in range(4, 20, 4) for width in range(4, 24, 4)] * 2

    def run_all() -> tuple[int, int, int]:
        for step, size in enumerate(sizes):
            tiny.run_unet(unet, 1, *size, timestep=step)
        return count_objects()

    start, end = run_all(), run_all()
    assert end[0] <= start[0]
    assert end[1] - start[1] <= len(sizes)
    assert end[2] - start[2] <= MOST_GROWTH


def count_objects() -> tuple[int, int, int]:
    """States and overrides of ToMe that are alive; all objects that Python tracks; bytes that the process holds."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096  # before a list of all, which has megabytes
    # Paddle itself never frees the list of its keywords that it makes for every ``to_tensor`` of an array.
    objects = [each for each in gc.get_objects() if not _is_of_keywords(each)]
    # By its type: a weak proxy would answer for what it stands for, which may be gone.
    ours = sum(issubclass(type(each), (DenoiserState, Override)) for each in objects)
    return ours, len(objects), resident


def _is_of_keywords(held: Any) -> bool:
    if type(held) is not list or list(map(type, held[:2])) != [str, str]:  # others' objects may refuse to be compared
        return False
    return held[:2] == ["value", "place"]
