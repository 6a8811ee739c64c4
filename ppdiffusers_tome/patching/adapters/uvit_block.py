"""Block of UViTT2IModel: the timestep and the text are tokens before those of the picture, and never merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MLP, BlockAdapter, around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(host: Layer, latent: paddle.Tensor) -> Grid:
    return Grid(*(side // _patch(host) for side in latent.shape[-2:]))


def _prefix(host: Layer, latent: paddle.Tensor) -> int:
    return host.extras


def _patch(host: Layer) -> int:
    return host.config.patch_size


ADAPTER = BlockAdapter(
    block_class="Block",
    inside=("UViTT2IModel",),
    sections={ATTENTION: (around("attn"),), MLP: (around("mlp"),)},
    grid=_grid,
    latent="patch_embed",
    # A block of the second half first mixes in what an earlier one gave.
    metric="norm1",
    downsample=_patch,
    prefix=_prefix,
)
