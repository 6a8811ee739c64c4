"""Video models: tokens merge within a frame, never with another frame's."""

from __future__ import annotations

from typing import Any

import paddle
import pytest

from patching.contract import groups, watch_blocks
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo import hotshot, lvdm, st_unet, unet_3d, unet_motion, unet_spatio_temporal, vid2vid_st_unet

VIDEO = [hotshot, lvdm, st_unet, unet_3d, unet_motion, unet_spatio_temporal, vid2vid_st_unet]
FRAMES = 3


@pytest.mark.parametrize("family", VIDEO, ids=lambda family: family.__name__.rpartition(".")[2])
def test_groups_never_hold_tokens_of_two_frames(family: Any) -> None:
    model = apply_tome(family.SPECIMEN.build(), 0.5, max_downsample=8)
    called, levels = watch_blocks(model), {block.block: block.level for block in find_blocks(model)}
    with paddle.no_grad():
        family.SPECIMEN.run(model, batch=2, height=16, width=8, frames=FRAMES)
    assert len(called) == len(levels) > 0
    for block in called:
        level, matching = levels[block.layer], block.reduction
        # ModelScope's video to video pads the height by a row when it halves it.
        rows = 16 // level + (family is vid2vid_st_unet and level > 1)
        assert (matching.batch, matching.num_tokens) == (2 * FRAMES, rows * (8 // level))
        assert matching.num_left == matching.num_tokens - matching.num_tokens // 2
        assert all(len(set(group // matching.num_tokens)) == 1 for group in groups(matching))


def test_as_many_frames_as_rows_and_columns_merge_over_space() -> None:
    """With 8 frames of 8x8 no shape tells space from time."""
    model = apply_tome(unet_3d.SPECIMEN.build(), 0.5)
    called = watch_blocks(model)
    with paddle.no_grad():
        unet_3d.SPECIMEN.run(model, batch=1, height=8, width=8, frames=8)
    matchings = [block.reduction for block in called]
    assert [(matching.batch, matching.num_tokens, matching.num_left) for matching in matchings] == [(8, 64, 32)] * 3
