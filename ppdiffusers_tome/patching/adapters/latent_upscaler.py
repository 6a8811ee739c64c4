"""KAttentionBlock: the UNet of the latent upscaler, without feed-forward layers."""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, BlockAdapter, MergePoint

ADAPTERS = (
    BlockAdapter(
        block_class="KAttentionBlock",
        parent_classes=("KCrossAttnDownBlock2D", "KCrossAttnUpBlock2D"),
        points={ATTENTION: (MergePoint("attn1", prepares_mask=True),), CROSS_ATTENTION: (MergePoint("attn2"),)},
        block_is_parent=True,
    ),
)
