"""WanTransformerBlock: Wan, with attention over all frames and cross-attention to the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, CROSS_ATTENTION, MLP, BlockAdapter, MergePoint

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    """Return the grid of ``[batch, channels, frames, height, width]``."""
    patches = zip(latent.shape[2:], parent.config.patch_size, strict=True)
    frames, height, width = (side // patch for side, patch in patches)
    return Grid(height, width, frames)


ADAPTERS = (
    BlockAdapter(
        block_class="WanTransformerBlock",
        parent_classes=("WanTransformer3DModel",),
        points={
            # It also accepts a mask, but prints a line at every call with one.
            ATTENTION: (MergePoint("attn1", keys=True, rotary="rotary_emb"),),
            CROSS_ATTENTION: (MergePoint("attn2"),),
            MLP: (MergePoint("ffn"),),
        },
        grid=_grid,
        grid_layer="patch_embedding",
        downsample=lambda parent: parent.config.patch_size[-1],
        frames=True,
    ),
)
