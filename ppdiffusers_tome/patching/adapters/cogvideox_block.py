"""CogVideoXBlock: attention over the text and all frames.

The processor puts the text before the frames, as the block does for its feed-forward layer. Its mask is not supported:
the processor cuts it to the text's length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, FIRST, MLP, BlockAdapter, merge_around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    """Return the grid of ``[batch, frames, channels, height, width]``."""
    patch = parent.config.patch_size
    return Grid(latent.shape[3] // patch, latent.shape[4] // patch, latent.shape[1])


ADAPTER = BlockAdapter(
    block_class="CogVideoXBlock",
    parent_classes=("CogVideoXTransformer3DModel", "CogVideoXTransformer3DVCtrlModel"),
    points={
        ATTENTION: (merge_around("attn1", keys=True, text=FIRST, rotary="image_rotary_emb"),),
        MLP: (merge_around("ff", text=FIRST),),
    },
    grid=grid,
    grid_layer="patch_embed",
    grid_inputs=(1,),  # after the text
    tokens_layer="norm1",
    downsample=lambda parent: parent.config.patch_size,
    frames=True,
)
