"""CogVideoX and PP-VCtrl for it: attention over all frames.

CogVideoX' processor puts the text before the frames, as its block does for the feed-forward layer. Its mask is not
supported: the processor cuts it to the text's length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, FIRST, MLP, BlockAdapter, MergePoint, patch_size

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    """Return the grid of ``[batch, frames, channels, height, width]``."""
    frames, _, height, width = latent.shape[1:]
    return Grid(height // patch_size(parent), width // patch_size(parent), frames)


_COGVIDEOX = BlockAdapter(
    block_class="CogVideoXBlock",
    parent_classes=("CogVideoXTransformer3DModel", "CogVideoXTransformer3DVCtrlModel"),
    points={
        ATTENTION: (MergePoint("attn1", keys=True, text=FIRST, rotary="image_rotary_emb"),),
        MLP: (MergePoint("ff", text=FIRST),),
    },
    grid=_grid,
    grid_layer="patch_embed",
    grid_inputs=(1,),  # after the text
    tokens_layer="norm1",
    downsample=patch_size,
    frames=True,
    outputs=("hidden_states", "encoder_hidden_states"),
)
_VCTRL = replace(
    _COGVIDEOX,
    block_class="VCtrlBlock",
    parent_classes=("VCtrlModel",),
    points={ATTENTION: (MergePoint("attn1", keys=True, rotary="image_rotary_emb"),), MLP: (MergePoint("ff"),)},
    grid_layer="sample_patch_embed",
    grid_inputs=(0,),
    outputs=(0,),
)
ADAPTERS = (_COGVIDEOX, _VCTRL)
