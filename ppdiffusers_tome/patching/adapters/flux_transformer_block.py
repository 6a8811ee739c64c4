"""FluxTransformerBlock: dual blocks of FLUX, whose attention puts the text first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, FIRST, MLP, BlockAdapter, merge_around

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def grid(parent: Layer, img_ids: paddle.Tensor, txt_ids: paddle.Tensor) -> Grid | None:
    """Return the grid of tokens that pack 2 by 2 latents.

    ``img_ids`` are ``[(batch,) tokens, 3]``: (0, row, column) of each token. FLUX uses those of the first image.
    """
    ids = (img_ids[0] if img_ids.ndim == 3 else img_ids).astype("float32").numpy()
    height, width = (int(side) + 1 for side in ids[:, 1:3].max(axis=0))
    if height * width != len(ids):
        return None
    row_by_row = np.stack(np.divmod(np.arange(len(ids)), width), axis=1)
    return Grid(height, width) if (ids[:, 1:3] == row_by_row).all() else None


ATTENTION_OF_FLUX = merge_around(
    "attn", keys=True, text=FIRST, rotary="image_rotary_emb", mask="attention_mask"
)

ADAPTER = BlockAdapter(
    block_class="FluxTransformerBlock",
    parent_classes=("FluxTransformer2DModel",),
    points={ATTENTION: (ATTENTION_OF_FLUX,), MLP: (merge_around("ff"),)},
    grid=grid,
    grid_inputs=("img_ids", "txt_ids"),
    grid_from_values=True,
    tokens_layer="norm1",
    downsample=lambda parent: 2,
)
