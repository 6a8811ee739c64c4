"""On a CPU what is added to the scores of merged keys goes into the product that makes the scores."""

from __future__ import annotations

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.masks import append_mask_channel, is_key_mask
from ppdiffusers_tome.patching.hooks.method_override import StandIn

Scored = tuple[paddle.Tensor, paddle.Tensor, "paddle.Tensor | None"]


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
        block = None if attention_mask is None else self.attachment.block()
        if block is not None and block.matching is not None:
            query, key, attention_mask = sizes_as_channel(self.attention, query, key, attention_mask)
        return self.stood_in_for(query, key, attention_mask)


def has_plain_scores(attention: Layer) -> bool:
    """Whether a layer makes its scores by ppdiffusers' own method; another's may look at the mask or at channels."""
    own = vars(attention).get(MaskAsChannel.NAME)
    holder = next((cls for cls in type(attention).__mro__ if MaskAsChannel.NAME in vars(cls)), None)
    inherited = None if holder is None else (holder.__module__.split(".")[0], holder.__name__)
    return inherited == ("ppdiffusers", "Attention") and (own is None or isinstance(own, MaskAsChannel))


def sizes_as_channel(
    attention: Layer, query: paddle.Tensor, key: paddle.Tensor, mask: paddle.Tensor | None
) -> Scored:
    """What ``get_attention_scores`` is to be given in place of these, of which it makes the same sooner."""
    if mask is not None and paddle.get_device() == "cpu" and is_key_mask(mask, key):
        return *append_mask_channel(query, key, mask, attention.scale), None
    return query, key, mask
