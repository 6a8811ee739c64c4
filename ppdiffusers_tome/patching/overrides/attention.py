"""Overrides of ``Attention`` that reduce masks and weight scores by group size."""

from typing import Any

import paddle

from ppdiffusers_tome.merging.masks import add_group_size_bias
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.patching.override import Original, Override
from ppdiffusers_tome.patching.processors import accepts_group_sizes
from ppdiffusers_tome.patching.state.point_call import PointCall, UnmergeableError


class MaskOverride(Override):
    """The override of ``Attention.prepare_attention_mask``, which every processor calls with its mask."""

    method_name = "prepare_attention_mask"
    runs_in = "point_call"

    def run(
        self, point_call: PointCall, original: Original, /, attention_mask: paddle.Tensor | None, target_length: int,
        batch_size: int, out_dim: int = 4, *args: Any, **kwargs: Any,
    ) -> paddle.Tensor | None:  # fmt: skip
        """Prepare a mask of reduced keys, maybe with log group sizes."""
        mask, reduction = attention_mask, point_call.reduction
        num_keys = target_length if mask is None else mask.shape[-1]
        is_of_image = num_keys == target_length == reduction.num_tokens
        if mask is not None:
            mask = self._reduce(mask, point_call)
            if mask.shape[-1] != num_keys:
                target_length = mask.shape[-1]
        if METHODS[self.state.config.method].uses_group_sizes and is_of_image and accepts_group_sizes(self.layer):
            mask, target_length = self._add_sizes(mask, reduction), reduction.num_left
            if attention_mask is None:
                # ppdiffusers' function cannot expand to heads in a program for any batch.
                by_head = mask.unsqueeze(1).expand([-1, self.layer.heads, -1, -1])
                return by_head if out_dim == 4 else by_head.flatten(0, 1)
        return original(mask, target_length, batch_size, out_dim, *args, **kwargs)

    def _reduce(self, mask: paddle.Tensor, point_call: PointCall) -> paddle.Tensor:
        """Reduce an image's mask, or make room for its keys."""
        reduction, merges_inside = point_call.reduction, point_call.point.merges_inside
        if mask.shape[-1] != reduction.num_tokens:  # of a text
            if not merges_inside:
                return mask
            visible = paddle.zeros([*mask.shape[:-1], reduction.num_left], dtype=mask.dtype)
            return paddle.concat([mask, visible], axis=-1)  # the keys of the image follow
        if merges_inside and not reduction.keeps_queries:  # attention asks for its mask before its tokens merge
            raise UnmergeableError("attention on an image got a mask, so it runs unmerged")
        return reduction.reduce_mask(mask)

    def _add_sizes(self, mask: paddle.Tensor | None, reduction: TokenReduction) -> paddle.Tensor:
        """Return ``[batch (* heads), 1 or queries, left]``."""
        by_head = None
        if mask is not None:
            heads = max(1, mask.shape[0] // reduction.batch)
            by_head = mask.reshape([-1, heads, *mask.shape[1:]])
        # Of layers that wrap others, as for LoRA, or have whole numbers as weights, too.
        dtypes = (each.dtype for each in self.layer.to_q.parameters() if each.is_floating_point())
        dtype = next(dtypes, paddle.float32) if mask is None else mask.dtype
        sizes = add_group_size_bias(by_head, reduction, 0, dtype, text_first=False)
        return sizes.expand([reduction.batch, *sizes.shape[1:]]).flatten(0, 1)
