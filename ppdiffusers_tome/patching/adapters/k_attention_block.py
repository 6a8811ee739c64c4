"""KAttentionBlock: the latent upscaler's UNet. It is called with the latent and has no feed-forward layer."""

from __future__ import annotations

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, KEYS, BlockAdapter, around

ADAPTER = BlockAdapter(
    block_class="KAttentionBlock",
    inside=("KCrossAttnDownBlock2D", "KCrossAttnUpBlock2D"),
    sections={ATTENTION: (around("attn1", keys=KEYS),), CROSS_ATTENTION: (around("attn2"),)},
    block_is_parent=True,
)
