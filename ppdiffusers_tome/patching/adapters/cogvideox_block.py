"""CogVideoXBlock: attention over all frames and the text, which its processor puts before them.

So does the block before its feed-forward layer. The processor's mask is of no use: it is cut to the text's length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, FIRST, MLP, BlockAdapter, around, keyword_attention

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def grid(host: Layer, latent: paddle.Tensor) -> Grid:
    """``latent``: ``[batch, frames, channels, height, width]``."""
    patch = host.config.patch_size
    return Grid(latent.shape[3] // patch, latent.shape[4] // patch, latent.shape[1])


ADAPTER = BlockAdapter(
    block_class="CogVideoXBlock",
    inside=("CogVideoXTransformer3DModel", "CogVideoXTransformer3DVCtrlModel"),
    sections={
        ATTENTION: (keyword_attention("attn1", keys=True, others=FIRST, rotary="image_rotary_emb"),),
        MLP: (around("ff", others=FIRST),),
    },
    grid=grid,
    latent="patch_embed",
    given=(1,),  # behind the text
    metric="norm1",
    downsample=lambda host: host.config.patch_size,
    frames=True,
)
