"""HunyuanVideoTransformerBlock: dual blocks, whose attention puts the text last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, merge_around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    """Return the grid of ``[batch, channels, frames, height, width]``."""
    frames, height, width = latent.shape[2:]
    patch = parent.config.patch_size
    return Grid(height // patch, width // patch, frames // parent.config.patch_size_t)


ATTENTION_OF_HUNYUAN = merge_around(
    "attn", keys=True, text=LAST, rotary="image_rotary_emb", mask="attention_mask"
)

ADAPTER = BlockAdapter(
    block_class="HunyuanVideoTransformerBlock",
    parent_classes=("HunyuanVideoTransformer3DModel",),
    points={ATTENTION: (ATTENTION_OF_HUNYUAN,), MLP: (merge_around("ff"),)},
    grid=_grid,
    grid_layer="x_embedder",
    downsample=lambda parent: parent.config.patch_size,
    frames=True,
)
