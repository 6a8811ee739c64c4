"""FLUX and its ControlNet: dual and single blocks, the text first."""

from dataclasses import replace

import numpy as np
import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, FIRST, MLP, BlockAdapter, MergePoint


def _grid(parent: Layer, img_ids: paddle.Tensor, txt_ids: paddle.Tensor) -> Grid | None:
    """Return the grid of tokens that pack 2 by 2 latents.

    ``img_ids`` are ``[(batch,) tokens, 3]``: (0, row, column) of each token. FLUX uses those of the first image.
    """
    ids = (img_ids[0] if img_ids.ndim == 3 else img_ids).astype("float32").numpy()
    height, width = (int(side) + 1 for side in ids[:, 1:3].max(axis=0))
    if height * width != len(ids):
        return None
    row_by_row = np.stack(np.divmod(np.arange(len(ids)), width), axis=1)
    return Grid(height, width) if (ids[:, 1:3] == row_by_row).all() else None


def _count_text(parent: Layer, img_ids: paddle.Tensor, txt_ids: paddle.Tensor) -> int:
    """Count the text's tokens, ``[(1,) tokens, 3]``, and a union's mode."""
    return txt_ids.shape[-2] + bool(getattr(parent, "union", False))


_ATTENTION = MergePoint("attn", text=FIRST, rotary="image_rotary_emb", mask="attention_mask")
_DUAL = BlockAdapter(
    block_class="FluxTransformerBlock",
    parent_classes=("FluxTransformer2DModel", "FluxControlNetModel"),
    points={ATTENTION: (_ATTENTION,), MLP: (MergePoint("ff"),)},
    grid=_grid,
    grid_inputs=("img_ids", "txt_ids"),
    grid_from_values=True,
    downsample=lambda parent: 2,
    outputs=("encoder_hidden_states", "hidden_states"),
)
_SINGLE = replace(
    _DUAL,
    block_class="FluxSingleTransformerBlock",
    points={ATTENTION: (_ATTENTION,)},
    prefix=_count_text,
    outputs=("hidden_states",),
)
ADAPTERS = (_DUAL, _SINGLE)
