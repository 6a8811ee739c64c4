"""CogVideoX and PP-VCtrl for it: attention over all frames.

CogVideoX' processor puts the text before the frames, as its block does for the feed-forward layer. Its mask is not
supported: the processor cuts it to the text's length.
"""

from dataclasses import replace

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, FIRST, MLP, BlockAdapter, MergePoint, patch_size

_COGVIDEOX = BlockAdapter(
    block_class="CogVideoXBlock",
    parent_classes=("CogVideoXTransformer3DModel", "CogVideoXTransformer3DVCtrlModel"),
    points={
        ATTENTION: (MergePoint("attn1", text=FIRST, rotary="image_rotary_emb"),),
        MLP: (MergePoint("ff", text=FIRST),),
    },
    frames_axis=1,
    grid_layer="patch_embed",
    grid_inputs=(1,),  # after the text
    downsample=patch_size,
    outputs=("hidden_states", "encoder_hidden_states"),
)
_VCTRL = replace(
    _COGVIDEOX,
    block_class="VCtrlBlock",
    parent_classes=("VCtrlModel",),
    points={ATTENTION: (MergePoint("attn1", rotary="image_rotary_emb"),), MLP: (MergePoint("ff"),)},
    grid_layer="sample_patch_embed",
    grid_inputs=(0,),
    outputs=(0,),
)
ADAPTERS = (_COGVIDEOX, _VCTRL)
