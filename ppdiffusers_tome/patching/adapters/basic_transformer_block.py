"""BasicTransformerBlock over space: Stable Diffusion, SDXL, ControlNet, GLIGEN, DiT, PixArt, SVD, ...

TransformerTemporalModel (its tokens are frames) and PriorTransformer (its tokens are no grid) use the same block class;
neither is a parent here, so their blocks never merge.
"""

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, MLP, BlockAdapter, MergePoint


def _grid(parent: Layer, hidden_states: paddle.Tensor) -> Grid:
    """Return the grid of ``[batch, channels, (frames,) height, width]``, NHWC or indices."""
    if getattr(parent, "is_input_vectorized", False):
        return Grid(parent.height, parent.width)
    if getattr(parent, "is_input_continuous", False) and parent.data_format == "NHWC":
        return Grid(*hidden_states.shape[1:3])
    patch = _downsample(parent)
    return Grid(hidden_states.shape[-2] // patch, hidden_states.shape[-1] // patch)


def _downsample(parent: Layer) -> int:
    return parent.patch_size if getattr(parent, "is_input_patches", False) else 1


ADAPTERS = (
    BlockAdapter(
        block_class="BasicTransformerBlock",
        # The last is ModelScope's, with a block class of its own under the same name.
        parent_classes=("Transformer2DModel", "TransformerSpatioTemporalModel", "SpatialTransformer"),
        points={
            ATTENTION: (MergePoint("attn1", prepares_mask=True),),
            CROSS_ATTENTION: (MergePoint("attn2"),),
            MLP: (MergePoint("ff"),),
        },
        grid=_grid,
        downsample=_downsample,
        # Not where both attentions are to the text, as in ModelScope and the finer levels of the x4 upscaler.
        can_merge=lambda block: not any(
            getattr(block, name, False) for name in ("disable_self_attn", "only_cross_attention")
        ),
    ),
)
