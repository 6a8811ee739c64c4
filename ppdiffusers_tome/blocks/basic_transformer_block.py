"""BasicTransformerBlock inside Transformer2DModel: Stable Diffusion, SDXL, ControlNet, GLIGEN, DiT.

The same block class serves over time in TransformerTemporalModel (its tokens are frames) and in PriorTransformer
(its tokens are no grid); neither is a Transformer2DModel, so both are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.blocks.adapter import ATTENTION, CROSS_ATTENTION, MLP, BlockAdapter
from ppdiffusers_tome.grid import Grid

if TYPE_CHECKING:
    import paddle


def _grid(host: Any, hidden_states: paddle.Tensor) -> Grid:
    """``hidden_states``: ``[batch, channels, height, width]``, NHWC where the host says so, or class numbers."""
    if host.is_input_vectorized:
        return Grid(host.height, host.width)
    if host.is_input_continuous and host.data_format == "NHWC":
        return Grid(*hidden_states.shape[1:3])
    patch = _downsample(host)
    return Grid(hidden_states.shape[-2] // patch, hidden_states.shape[-1] // patch)


def _downsample(host: Any) -> int:
    return host.patch_size if host.is_input_patches else 1


ADAPTER = BlockAdapter(
    block_class="BasicTransformerBlock",
    host_class="Transformer2DModel",
    sublayers={ATTENTION: "attn1", CROSS_ATTENTION: "attn2", MLP: "ff"},
    grid=_grid,
    downsample=_downsample,
)
