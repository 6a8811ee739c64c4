"""Memory stays what it is, and a block's tokens pass through few of our own functions, which a reader has to follow."""

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paddle.nn import Layer

import ppdiffusers_tome
import tiny
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.override import Override
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# What allocators and caches may do; a leak of the smallest tensor a call, 1 KB, would be seen in gc below.
MOST_GROWTH = 8 * 2**20
# Caches of partitions and constants are full by then.
WARM = 60
FOLDER = str(Path(ppdiffusers_tome.__file__).parent)
MOST_CALLS = 32  # of our own functions in a later block on the same grid


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
    assert end.own <= start.own  # those of earlier tests may go meanwhile
    assert end.objects - start.objects < 2 * WARM  # not one more a round, whatever else Python holds
    assert end.num_bytes - start.num_bytes <= MOST_GROWTH


def test_memory_stays_over_calls_of_ever_new_sizes() -> None:
    """Grids, partitions and matchings are kept for a call, or in caches that have an end."""
    unet = apply_tome(tiny.unet(), **tiny.MERGE_ALL, reuse_steps=2, tile=4)
    sizes = [(height, width) for height in range(4, 20, 4) for width in range(4, 24, 4)] * 2

    def run_all() -> SimpleNamespace:
        for step, size in enumerate(sizes):
            tiny.run_unet(unet, 1, *size, timestep=step)
        return count_objects()

    start, end = run_all(), run_all()
    assert end.own <= start.own
    assert end.objects - start.objects <= len(sizes)
    assert end.num_bytes - start.num_bytes <= MOST_GROWTH


def count_objects() -> SimpleNamespace:
    """Count ``own`` states and overrides, all ``objects`` that Python tracks, and what the process holds."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096  # before a list of all, which has megabytes
    # Paddle itself never frees the list of its keywords that it makes for every ``to_tensor`` of an array.
    objects = [each for each in gc.get_objects() if not _is_of_keywords(each)]
    # By its type: a weak proxy would answer for what it stands for, which may be gone.
    own = sum(issubclass(type(each), (DenoiserState, Override)) for each in objects)
    return SimpleNamespace(own=own, objects=len(objects), num_bytes=resident)


def _is_of_keywords(held: Any) -> bool:
    if type(held) is not list or list(map(type, held[:2])) != [str, str]:  # others' objects may refuse to be compared
        return False
    return held[:2] == ["value", "place"]


def count_own_calls(unet: Layer) -> int:
    calls: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            calls.append(frame.f_code.co_name)

    tiny.run_unet(unet)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        tiny.run_unet(unet)
    finally:
        sys.setprofile(before)
    return len(calls)


@pytest.mark.parametrize("method", ["tome", "todo"])
def test_a_later_block_on_the_same_grid_has_few_own_calls(method: str) -> None:
    one, two = (
        apply_tome(tiny.unet(levels=1, transformer_layers_per_block=layers), 0.5, method=method) for layers in (1, 2)
    )
    calls, blocks = count_own_calls(two) - count_own_calls(one), sum(one.tome.blocks.values())
    assert 10 * blocks < calls <= MOST_CALLS * blocks
