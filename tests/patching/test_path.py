"""The path of the tokens through a block: few calls of our own functions, each of which a reader has to follow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ppdiffusers
import pytest

import ppdiffusers_tome
import tiny
from ppdiffusers_tome import apply_tome

FOLDER = str(Path(ppdiffusers_tome.__file__).parent)
HIGHEST = 27


def build(layers: int) -> tiny.Model:
    config = {name: value for name, value in tiny.unet(levels=1).config.items() if not name.startswith("_")}
    return tiny.build(ppdiffusers.UNet2DConditionModel, **{**config, "transformer_layers_per_block": layers})


def count_own_calls(unet: tiny.Model) -> int:
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
    one, two = (apply_tome(build(layers), 0.5, method=method) for layers in (1, 2))
    calls, blocks = count_own_calls(two) - count_own_calls(one), one.tome.num_blocks
    assert 10 * blocks < calls <= HIGHEST * blocks
