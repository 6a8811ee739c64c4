"""A self-attention mask merges with its tokens."""

from __future__ import annotations

from typing import Any

import paddle

from ppdiffusers_tome.merging.masks import add_group_size_bias, expand_to_heads
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
from ppdiffusers_tome.patching.blocks import gets_group_sizes
from ppdiffusers_tome.patching.hooks.merge import stores_attention_maps
from ppdiffusers_tome.patching.hooks.method_override import StandIn
from ppdiffusers_tome.patching.state.calls import BlockCall


class MaskMerger(StandIn):
    """Stands in for ``Attention.prepare_attention_mask``: a self-attention mask must merge with its tokens.

    Every attention processor hands its mask to that method. Paddle 2.6 shows hooks no keyword arguments, so it is
    where the mask can be met on every version.
    """

    NAME = "prepare_attention_mask"

    def __call__(
        self, mask: paddle.Tensor | None, target_length: int, batch_size: int, out_dim: int = 4, *args: Any,
        **kwargs: Any,
    ) -> paddle.Tensor | None:
        proportional = gets_group_sizes(self.attention, self.attachment.config)
        block = None if mask is None and not proportional else self.attachment.block()
        matching = None if block is None else block.match()
        if block is not None and matching is not None and not stores_attention_maps(self.attachment, ATTENTION, self.attention):
            of_keys = self._is_of_keys(mask, target_length, block, matching)
            if mask is not None:
                mask, target_length = self._merged(mask, target_length, block, matching)
            if proportional and of_keys:
                sizes = self._with_sizes(mask, matching)
                if mask is None and sizes is not None and self.own is None:
                    return expand_to_heads(sizes.unsqueeze(1), self.attention.heads, out_dim)
                mask, target_length = sizes, matching.num_left
        return self.stood_in_for(mask, target_length, batch_size, out_dim, *args, **kwargs)

    def _is_of_keys(
        self, mask: paddle.Tensor | None, target_length: int, block: BlockCall, matching: TokenReduction
    ) -> bool:
        """Whether the attention that asks is on the block's own tokens, of which fewer give keys."""
        # Merged tokens are asked about once they entered; keys that are fewer, before.
        if matching.keeps_queries:
            return (target_length if mask is None else mask.shape[-1]) == matching.num_tokens
        own = (matching.num_tokens, matching.num_left)
        return block.section is not None and (mask is None or mask.shape[-1] in own)

    def _with_sizes(self, mask: paddle.Tensor | None, matching: TokenReduction) -> paddle.Tensor | None:
        """``[batch * heads or batch, 1 or queries, left]``."""
        by_head = None
        if mask is not None:
            heads = max(1, mask.shape[0] // matching.batch)
            by_head = mask.reshape([-1, heads, *mask.shape[1:]])
        dtype = self.attention.to_q.weight.dtype if mask is None else mask.dtype
        sizes = add_group_size_bias(by_head, matching, 0, dtype, text_first=False)
        return None if sizes is None else sizes.expand([matching.batch, *sizes.shape[1:]]).flatten(0, 1)

    def _merged(
        self, mask: paddle.Tensor, target_length: int, block: BlockCall, matching: TokenReduction
    ) -> tuple[paddle.Tensor, int]:
        own = mask.shape[-1] == matching.num_tokens
        if matching.keeps_queries:
            # Its keys are made later on, so the processor counts all tokens.
            if own:
                return matching.reduce_mask(mask), matching.num_left
        elif block.section is not None:
            return (matching.reduce_mask(mask) if own else mask), target_length
        elif own:
            # Attention on a picture meets its mask before its tokens merge.
            block.run_unmerged()
            self.attachment.warn_once("mask", "attention on a picture got a mask, so it runs unmerged")
            return mask, target_length
        # The mask of a text whose keys stand before the picture's; those are never left out.
        seen = paddle.zeros([*mask.shape[:-1], matching.num_left], dtype=mask.dtype)
        return paddle.concat([mask, seen], axis=-1), mask.shape[-1] + matching.num_left
