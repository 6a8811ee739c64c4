"""VCtrlBlock: PP-VCtrl for CogVideoX, with attention over all frames, without text."""

from __future__ import annotations

from ppdiffusers_tome.patching.adapters import cogvideox_block
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MLP, BlockAdapter, merge_around

ADAPTER = BlockAdapter(
    block_class="VCtrlBlock",
    parent_classes=("VCtrlModel",),
    points={
        ATTENTION: (merge_around("attn1", keys=True, rotary="image_rotary_emb"),),
        MLP: (merge_around("ff"),),
    },
    grid=cogvideox_block.grid,
    grid_layer="sample_patch_embed",
    tokens_layer="norm1",
    downsample=lambda parent: parent.config.patch_size,
    frames=True,
)
