"""Mochi: text last, a learned rotary embedding for every head."""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, MergePoint, patch_size

ADAPTERS = (
    BlockAdapter(
        block_class="MochiTransformerBlock",
        parent_classes=("MochiTransformer3DModel",),
        # Its mask is the text's.
        points={ATTENTION: (MergePoint("attn1", text=LAST, rotary="image_rotary_emb"),), MLP: (MergePoint("ff"),)},
        frames_axis=2,
        downsample=patch_size,
        outputs=("hidden_states", "encoder_hidden_states"),
    ),
)
