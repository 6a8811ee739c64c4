"""BasicTransformerBlockST: LVDM's text to video. Attention over space merges in each frame; over time it never does.

The feed-forward layer works on frames, so it has no grid of tokens.
"""

from __future__ import annotations

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, BlockAdapter, merge_around

ADAPTER = BlockAdapter(
    block_class="BasicTransformerBlockST",
    parent_classes=("SpatialTemporalTransformer",),
    points={ATTENTION: (merge_around("attn1", keys=True),), CROSS_ATTENTION: (merge_around("attn2"),)},
    # The block gets a video; before its first norm that is cut into frames.
    tokens_layer="norm1",
)
