"""FluxSingleTransformerBlock: one sequence of the text and the image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ppdiffusers_tome.patching.adapters import flux_transformer_block
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer


def _prefix(parent: Layer, img_ids: paddle.Tensor, txt_ids: paddle.Tensor) -> int:
    """Return the number of text tokens; ``txt_ids``: ``[(1,) tokens, 3]``."""
    return txt_ids.shape[-2]


ADAPTER = replace(
    flux_transformer_block.ADAPTER,
    block_class="FluxSingleTransformerBlock",
    points={ATTENTION: (flux_transformer_block.ATTENTION_OF_FLUX,)},
    tokens_layer="norm",
    prefix=_prefix,
)
