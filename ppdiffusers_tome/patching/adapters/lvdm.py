"""BasicTransformerBlockST: text to video with LVDM.

Tokens merge within each frame, in attention over space. Attention over time and the feed-forward layer never merge.
"""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, BlockAdapter, MergePoint

ADAPTERS = (
    BlockAdapter(
        block_class="BasicTransformerBlockST",
        parent_classes=("SpatialTemporalTransformer",),
        points={ATTENTION: (MergePoint("attn1", prepares_mask=True),), CROSS_ATTENTION: (MergePoint("attn2"),)},
    ),
)
