"""UniDiffuserBlock, whose timesteps, text and image embedding are tokens before the latent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MLP, BlockAdapter, merge_around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    return Grid(*(side // _patch(parent) for side in latent.shape[-2:]))


def _patch(parent: Layer) -> int:
    return parent.config.patch_size


def _prefix(parent: Layer, latent: paddle.Tensor) -> int:
    """Count two timesteps, any data type, the text and the image embedding."""
    return 3 + bool(parent.use_data_type_embedding) + parent.num_text_tokens


ADAPTER = BlockAdapter(
    block_class="UniDiffuserBlock",
    parent_classes=("UniDiffuserModel",),
    points={ATTENTION: (merge_around("attn1", keys=True),), MLP: (merge_around("ff"),)},
    grid=_grid,
    grid_layer="vae_img_in",
    downsample=_patch,
    prefix=_prefix,
)
