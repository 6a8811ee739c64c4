"""Block of UViTT2IModel, whose timestep and text are tokens before the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MLP, BlockAdapter, merge_around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(parent: Layer, latent: paddle.Tensor) -> Grid:
    return Grid(*(side // _patch(parent) for side in latent.shape[-2:]))


def _prefix(parent: Layer, latent: paddle.Tensor) -> int:
    return parent.extras


def _patch(parent: Layer) -> int:
    return parent.config.patch_size


ADAPTER = BlockAdapter(
    block_class="Block",
    parent_classes=("UViTT2IModel",),
    points={ATTENTION: (merge_around("attn"),), MLP: (merge_around("mlp"),)},
    grid=_grid,
    grid_layer="patch_embed",
    # A block of the second half first adds the output of an earlier one.
    tokens_layer="norm1",
    downsample=_patch,
    prefix=_prefix,
)
