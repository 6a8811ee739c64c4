"""UniDiffuser's blocks: timesteps, text and image embedding are tokens before those of the latent, and never merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, KEYS, MLP, BlockAdapter, around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _grid(host: Layer, latent: paddle.Tensor) -> Grid:
    return Grid(*(side // _patch(host) for side in latent.shape[-2:]))


def _patch(host: Layer) -> int:
    return host.config.patch_size


def _prefix(host: Layer, latent: paddle.Tensor) -> int:
    """Two timesteps, the kind of data where the model is told, the text, and one token for the image embedding."""
    return 3 + bool(host.use_data_type_embedding) + host.num_text_tokens


ADAPTER = BlockAdapter(
    block_class="UniDiffuserBlock",
    inside=("UniDiffuserModel",),
    sections={ATTENTION: (around("attn1", keys=KEYS),), MLP: (around("ff"),)},
    grid=_grid,
    latent="vae_img_in",
    downsample=_patch,
    prefix=_prefix,
)
