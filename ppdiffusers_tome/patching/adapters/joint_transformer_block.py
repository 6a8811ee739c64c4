"""JointTransformerBlock: Stable Diffusion 3, 3.5 and their ControlNet.

Only image tokens merge; attention appends the text to them. The first output of attention is the image's and is
unmerged. Some blocks of 3.5 have a second attention on the image alone. No processor of either reads a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, MLP, BlockAdapter, merge_around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    return Grid(*(side // parent.config.patch_size for side in latent.shape[-2:]))


ADAPTER = BlockAdapter(
    block_class="JointTransformerBlock",
    parent_classes=("SD3Transformer2DModel", "SD3ControlNetModel"),
    points={
        ATTENTION: (
            merge_around("attn", keys=True, text=LAST),
            merge_around("attn2", keys=True, text=LAST),
        ),
        MLP: (merge_around("ff"),),
    },
    grid=_grid,
    grid_layer="pos_embed",
    tokens_layer="norm1",
    downsample=lambda parent: parent.config.patch_size,
)
