"""What is added to the scores of attention on merged tokens: its mask, and how many tokens each stands for."""

from __future__ import annotations

import paddle

from ppdiffusers_tome.merging.kv_reduction.base import FewerKeys
from ppdiffusers_tome.merging.matching import Matching

# Added to a score, it leaves nothing of it, and float16 holds it.
_LEFT_OUT = -1e4


def merge_key_mask(mask: paddle.Tensor, matching: Matching | FewerKeys, *, text_first: bool) -> paddle.Tensor:
    """A mask whose keys merge as the tokens did: a group is left out as soon as one of its tokens is.

    Args:
        mask: ``[batch or 1, heads or 1, 1, keys]``, True for what is seen, or a number to add to the scores.
        matching: of some of the keys; the others stay as they are.
        others_first: whether those stand before the ones that merge.
    """
    num_others = mask.shape[-1] - matching.num_tokens
    start = num_others if text_first else 0
    own = mask[..., start : start + matching.num_tokens]
    bias = _as_bias(own) if mask.dtype == paddle.bool else own
    bias = bias.expand([matching.batch, *bias.shape[1:]]) if bias.shape[0] == 1 else bias
    merged = matching.merge_mask(bias.flatten(0, 1)).reshape([-1, own.shape[1], 1, matching.num_left])
    own = merged == 0 if mask.dtype == paddle.bool else merged
    if num_others == 0:
        return own
    others = mask[..., :num_others] if text_first else mask[..., matching.num_tokens :]
    others = others.expand([own.shape[0], *others.shape[1:]])
    return paddle.concat([others, own] if text_first else [own, others], axis=3)


def add_group_size_bias(
    mask: paddle.Tensor | None, matching: Matching | FewerKeys, num_others: int, dtype: paddle.dtype, *,
    text_first: bool,
) -> paddle.Tensor | None:  # fmt: skip
    """A mask by which a merged token counts as many times as it stands for tokens: the logarithm of that is added.

    Otherwise fewer keys would give more weight to those that did not merge, such as a text's (proportional attention:
    Token Merging: Your ViT But Faster, Bolya et al. 2023, section 3).

    Args:
        mask: for the merged tokens already, ``[batch or 1, heads or 1, 1 or queries, keys]``, as in ``merge_key_mask``;
            None for none.
        matching: of some of the keys.
        num_others: how many other keys there are.
        dtype: of the result.
        others_first: as in ``merge_key_mask``.

    Returns:
        As ``mask``, with one query where that is None; None where nothing is to be added.
    """
    if isinstance(matching, FewerKeys) and matching.uniform_groups and num_others == 0:
        return mask  # all keys stand for equally many, which softmax does not see
    sizes = matching.log_group_sizes
    if num_others:
        zeros = paddle.zeros([sizes.shape[0], num_others], dtype="float32")
        sizes = paddle.concat([zeros, sizes] if text_first else [sizes, zeros], axis=1)
    bias = sizes.unsqueeze([1, 2])
    if mask is not None:
        bias = bias + (_as_bias(mask) if mask.dtype == paddle.bool else mask.astype("float32"))
    return bias.astype(dtype)


def expand_to_heads(bias: paddle.Tensor, heads: int, out_dim: int) -> paddle.Tensor:
    """A bias ``[batch, 1, queries or 1, keys]`` as ppdiffusers' ``prepare_attention_mask`` makes one of a mask.

    It cannot do that itself in a program for any batch.

    Returns:
        ``[batch, heads, same, keys]``, or with an ``out_dim`` of 3 ``[batch * heads, same, keys]``.
    """
    by_head = bias.expand([-1, heads, -1, -1])
    return by_head if out_dim == 4 else by_head.flatten(0, 1)


@paddle.jit.not_to_static  # recording would make tensors of sizes that it does not know, and branches of them
def is_key_mask(mask: paddle.Tensor, key: paddle.Tensor) -> bool:
    """Whether a mask can be one more channel of the keys: it is the same for all queries, and exact as a factor.

    It must not be for more images or heads than there are keys of.

    Args:
        mask: ``[batch or 1, heads or 1, queries or 1, keys]``, or with batch and heads as one axis.
        key: ``[batch, heads, keys, head_dim]``, or with batch and heads as one axis.
    """
    return (
        mask.ndim == key.ndim
        and mask.shape[-2] == 1
        and key.dtype in (paddle.float32, paddle.float64)
        and all(own in (1, keys) for own, keys in zip(mask.shape[:-2], key.shape[:-2], strict=True))
    )


def append_mask_channel(
    query: paddle.Tensor, key: paddle.Tensor, mask: paddle.Tensor, scale: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Queries and keys with one more channel, whose product is the mask: that is cheaper than adding a row to a matrix.

    Args:
        query, key: ``[..., tokens or keys, head_dim]``.
        mask: as in ``is_key_mask``.
        scale: that products are multiplied with.
    """
    # The lowest float32 would become infinite.
    bias = paddle.clip(mask.astype(key.dtype), -1e30, 1e30).squeeze(-2).unsqueeze(-1) / scale
    # Sums with zeros, as a recorded program knows no shapes to expand to.
    key = paddle.concat([key, paddle.zeros_like(key[..., :1]) + bias], axis=-1)
    return paddle.concat([query, paddle.ones_like(query[..., :1])], axis=-1), key


def _as_bias(seen: paddle.Tensor) -> paddle.Tensor:
    return (1 - seen.astype("float32")) * _LEFT_OUT
