"""JointTransformerBlock: Stable Diffusion 3, 3.5 and their ControlNet.

Only image tokens merge; attention appends the text to them. The first output of attention is the image's and is
unmerged. Some blocks of 3.5 have a second attention on the image alone. No processor of either reads a mask.
"""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, MergePoint, patch_size

ADAPTERS = (
    BlockAdapter(
        block_class="JointTransformerBlock",
        parent_classes=("SD3Transformer2DModel", "SD3ControlNetModel"),
        points={
            ATTENTION: tuple(MergePoint(layer, text=LAST) for layer in ("attn", "attn2")),
            MLP: (MergePoint("ff"),),
        },
        grid_layer="pos_embed",
        downsample=patch_size,
        outputs=("encoder_hidden_states", "hidden_states"),
    ),
)
