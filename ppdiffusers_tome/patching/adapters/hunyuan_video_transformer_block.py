"""HunyuanVideoTransformerBlock: dual blocks. Frames and text are apart until attention, where the text comes last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, around, keyword_attention

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(host: Layer, latent: paddle.Tensor) -> Grid:
    """``latent``: ``[batch, channels, frames, height, width]``."""
    frames, height, width = latent.shape[2:]
    patch = host.config.patch_size
    return Grid(height // patch, width // patch, frames // host.config.patch_size_t)


ATTENTION_OF_HUNYUAN = keyword_attention(
    "attn", keys=True, others=LAST, rotary="image_rotary_emb", mask="attention_mask"
)

ADAPTER = BlockAdapter(
    block_class="HunyuanVideoTransformerBlock",
    inside=("HunyuanVideoTransformer3DModel",),
    sections={ATTENTION: (ATTENTION_OF_HUNYUAN,), MLP: (around("ff"),)},
    grid=_grid,
    latent="x_embedder",
    downsample=lambda host: host.config.patch_size,
    frames=True,
)
