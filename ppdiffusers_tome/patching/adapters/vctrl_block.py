"""VCtrlBlock: what controls CogVideoX (PP-VCtrl). Its attention is over all frames, without a text."""

from __future__ import annotations

from ppdiffusers_tome.patching.adapters import cogvideox_block
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MLP, BlockAdapter, around, keyword_attention

ADAPTER = BlockAdapter(
    block_class="VCtrlBlock",
    inside=("VCtrlModel",),
    sections={
        ATTENTION: (keyword_attention("attn1", keys=True, rotary="image_rotary_emb"),),
        MLP: (around("ff"),),
    },
    grid=cogvideox_block.grid,
    latent="sample_patch_embed",
    metric="norm1",
    downsample=lambda host: host.config.patch_size,
    frames=True,
)
