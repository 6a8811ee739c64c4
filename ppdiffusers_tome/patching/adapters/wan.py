"""WanTransformerBlock: Wan, with attention over all frames and cross-attention to the text."""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, MLP, BlockAdapter, MergePoint

ADAPTERS = (
    BlockAdapter(
        block_class="WanTransformerBlock",
        parent_classes=("WanTransformer3DModel",),
        points={
            # It also accepts a mask, but prints a line at every call with one.
            ATTENTION: (MergePoint("attn1", rotary="rotary_emb"),),
            CROSS_ATTENTION: (MergePoint("attn2"),),
            MLP: (MergePoint("ffn"),),
        },
        frames_axis=2,
        frames_patch=lambda parent: parent.config.patch_size[0],
        grid_layer="patch_embedding",
        downsample=lambda parent: parent.config.patch_size[-1],
    ),
)
