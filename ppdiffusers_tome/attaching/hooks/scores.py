"""On a CPU what is added to the scores of merged keys goes into the product that makes the scores."""

from __future__ import annotations

import paddle

from ppdiffusers_tome.attaching.hooks.stand_in import StandIn
from ppdiffusers_tome.merging.masks import is_for_keys, with_mask_as_channel


class MaskAsChannel(StandIn):
    """Stands in for ``Attention.get_attention_scores``, by which plain processors make their scores.

    There Paddle's CPU kernel adds a row to a matrix ten times as slowly as a matrix to a matrix: what is added for the
    sizes of groups would cost more than fewer keys save. GPUs do it well, and there one more channel would break the
    alignment of the product.
    """

    NAME = "get_attention_scores"

    def __call__(
        self, query: paddle.Tensor, key: paddle.Tensor, attention_mask: paddle.Tensor | None = None
    ) -> paddle.Tensor:
        if attention_mask is not None and is_for_keys(attention_mask, key) and paddle.get_device() == "cpu":
            block = self.attachment.block()
            if block is not None and block.matching is not None:
                query, key = with_mask_as_channel(query, key, attention_mask, self.attention.scale)
                attention_mask = None
        return self.stood_in_for(query, key, attention_mask)
