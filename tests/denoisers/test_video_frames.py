"""Video models: tokens merge within a frame, never with another frame's."""

from __future__ import annotations

from typing import Any

import paddle
import pytest

import tiny
from patching.contract import groups
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.blocks import MergeableBlock, find_blocks
from ppdiffusers_tome.patching.overrides.merge import PointForward
from ppdiffusers_tome.patching.overrides.method import list_overrides
from ppdiffusers_tome.patching.state.attachment import Attachment
from zoo import (
    hotshot,
    lvdm,
    st_unet,
    unet_3d,
    unet_motion,
    unet_spatio_temporal,
    vid2vid_st_unet,
)

VIDEO = [hotshot, lvdm, st_unet, unet_3d, unet_motion, unet_spatio_temporal, vid2vid_st_unet]
FRAMES = 3


def used_matchings(model: tiny.Model) -> list[tuple[MergeableBlock, Matching]]:
    """A list that fills with the matching of every self-attention as it runs, after ``apply_tome``."""
    used: list[tuple[MergeableBlock, Matching]] = []
    for site in find_blocks(model):
        overrides = [override for override in list_overrides(site.block.attn1) if isinstance(override, PointForward)]
        attachment = overrides[0].attachment if overrides else None
        if attachment is None:
            continue

        def note(layer: Any, inputs: Any, site: MergeableBlock = site, attachment: Attachment = attachment) -> None:
            used.append((site, attachment.current_call().block.reduction))

        site.block.attn1.to_q.register_forward_pre_hook(note)
    return used


@pytest.mark.parametrize("family", VIDEO, ids=lambda family: family.__name__.rpartition(".")[2])
def test_groups_never_hold_tokens_of_two_frames(family: Any) -> None:
    model = apply_tome(family.SPECIMEN.build(), 0.5, max_downsample=8)
    used = used_matchings(model)
    with paddle.no_grad():
        family.SPECIMEN.run(model, batch=2, height=16, width=8, frames=FRAMES)
    assert len(used) == len(find_blocks(model)) > 0
    for site, matching in used:
        # ModelScope's video to video pads the height by a row when it halves it.
        rows = 16 // site.level + (family is vid2vid_st_unet and site.level > 1)
        assert (matching.batch, matching.num_tokens) == (2 * FRAMES, rows * (8 // site.level))
        assert matching.num_merged == matching.num_tokens // 2
        assert all(len(set(group // matching.num_tokens)) == 1 for group in groups(matching))


def test_as_many_frames_as_rows_and_columns_merge_over_space() -> None:
    """With 8 frames of 8x8 no shape tells space from time."""
    model = apply_tome(unet_3d.SPECIMEN.build(), 0.5)
    used = used_matchings(model)
    with paddle.no_grad():
        unet_3d.SPECIMEN.run(model, batch=1, height=8, width=8, frames=8)
    assert [(matching.batch, matching.num_tokens, matching.num_left) for _, matching in used] == [(8, 64, 32)] * 3
