"""JointTransformerBlock: Stable Diffusion 3, 3.5 and their ControlNet. Image and text attend to each other.

Only image tokens merge. The block and its attention are called by keyword, so they do as they leave the norm before the
attention, and of the two results of the attention the first, the image's, is unmerged. Some blocks of 3.5 have a second
attention, of the image alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MLP, BlockAdapter, Section, around, keyword_attention

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(host: Layer, latent: paddle.Tensor) -> Grid:
    return Grid(*(side // host.config.patch_size for side in latent.shape[-2:]))


ADAPTER = BlockAdapter(
    block_class="JointTransformerBlock",
    inside=("SD3Transformer2DModel", "SD3ControlNetModel"),
    sections={
        ATTENTION: (
            Section(("norm1",), "attn", after=True, keys=("attn.to_k", "attn.to_v")),
            keyword_attention("attn2", keys=True),
        ),
        MLP: (around("ff"),),
    },
    grid=_grid,
    latent="pos_embed",
    metric="norm1",
    downsample=lambda host: host.config.patch_size,
)
