"""Attention on images without a block: DDPM, LDM, DeepFloyd IF, Kandinsky 2.

The reshape to tokens and the residual are inside the attention processor, so tokens merge at the projections of
queries, keys and values and are unmerged after the last one. Every processor of ppdiffusers calls those layers.
"""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, BlockAdapter, MergePoint

ADAPTERS = (
    BlockAdapter(
        block_class="Attention",
        parent_classes=(
            "AttnDownBlock2D", "AttnUpBlock2D", "AttnSkipDownBlock2D", "AttnSkipUpBlock2D", "UNetMidBlock2D",
            "SimpleCrossAttnDownBlock2D", "SimpleCrossAttnUpBlock2D", "UNetMidBlock2DSimpleCrossAttn",
        ),
        points={ATTENTION: (MergePoint("", merges_inside=True, prepares_mask=True),)},
        block_is_parent=True,
        can_merge=lambda block: not getattr(block, "only_cross_attention", False),
    ),
)  # fmt: skip
