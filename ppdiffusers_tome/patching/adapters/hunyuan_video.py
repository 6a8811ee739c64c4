"""HunyuanVideo: dual and single blocks, whose attention puts the text last."""

from dataclasses import replace

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, MergePoint, patch_size

_ATTENTION = MergePoint("attn", text=LAST, rotary="image_rotary_emb", mask="attention_mask")
_DUAL = BlockAdapter(
    block_class="HunyuanVideoTransformerBlock",
    parent_classes=("HunyuanVideoTransformer3DModel",),
    points={ATTENTION: (_ATTENTION,), MLP: (MergePoint("ff"),)},
    frames_axis=2,
    frames_patch=lambda parent: parent.config.patch_size_t,
    grid_layer="x_embedder",
    downsample=patch_size,
    outputs=("hidden_states", "encoder_hidden_states"),
)
_SINGLE = replace(_DUAL, block_class="HunyuanVideoSingleTransformerBlock", points={ATTENTION: (_ATTENTION,)})
ADAPTERS = (_DUAL, _SINGLE)
