"""Mochi, whose attention puts the text last; it learns a rotary embedding for every head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, MergePoint, patch_size

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    """Return the grid of ``[batch, channels, frames, height, width]``."""
    frames, height, width = latent.shape[2:]
    return Grid(height // patch_size(parent), width // patch_size(parent), frames)


ADAPTERS = (
    BlockAdapter(
        block_class="MochiTransformerBlock",
        parent_classes=("MochiTransformer3DModel",),
        # Its mask is the text's.
        points={
            ATTENTION: (MergePoint("attn1", keys=True, text=LAST, rotary="image_rotary_emb"),),
            MLP: (MergePoint("ff"),),
        },
        grid=_grid,
        downsample=patch_size,
        frames=True,
        outputs=("hidden_states", "encoder_hidden_states"),
    ),
)
