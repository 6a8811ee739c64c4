"""BasicTransformerBlockST: LVDM's text to video. Attention over space merges in each frame; over time it never does.

The feed-forward layer works on frames, so it has no grid of tokens.
"""

from __future__ import annotations

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, KEYS, BlockAdapter, around

ADAPTER = BlockAdapter(
    block_class="BasicTransformerBlockST",
    inside=("SpatialTemporalTransformer",),
    sections={ATTENTION: (around("attn1", keys=KEYS),), CROSS_ATTENTION: (around("attn2"),)},
    # The block gets a video; before its first norm that is cut into frames.
    metric="norm1",
)
