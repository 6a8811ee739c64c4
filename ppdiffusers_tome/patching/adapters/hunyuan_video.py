"""HunyuanVideo: dual and single blocks, whose attention puts the text last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, MergePoint, patch_size

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    """Return the grid of ``[batch, channels, frames, height, width]``."""
    frames, height, width = latent.shape[2:]
    return Grid(height // patch_size(parent), width // patch_size(parent), frames // parent.config.patch_size_t)


_ATTENTION = MergePoint("attn", keys=True, text=LAST, rotary="image_rotary_emb", mask="attention_mask")
_DUAL = BlockAdapter(
    block_class="HunyuanVideoTransformerBlock",
    parent_classes=("HunyuanVideoTransformer3DModel",),
    points={ATTENTION: (_ATTENTION,), MLP: (MergePoint("ff"),)},
    grid=_grid,
    grid_layer="x_embedder",
    downsample=patch_size,
    frames=True,
    outputs=("hidden_states", "encoder_hidden_states"),
)
_SINGLE = replace(_DUAL, block_class="HunyuanVideoSingleTransformerBlock", points={ATTENTION: (_ATTENTION,)})
ADAPTERS = (_DUAL, _SINGLE)
