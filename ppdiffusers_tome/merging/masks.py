"""Biases of attention on reduced tokens: its mask, and group sizes."""

import paddle

from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.token_span import TokenSpan

# Added to a score, it leaves nothing of it, and float16 holds it.
_MASKED = -1e4


def reduce_key_mask(mask: paddle.Tensor, reduction: TokenReduction, *, text_first: bool) -> paddle.Tensor:
    """Mask a merged key if any of its tokens is masked.

    Args:
        mask: ``[batch or 1, heads or 1, 1, keys]``, True for what is seen, or a number to add to the scores.
        reduction: of the image's keys; those of a text stay as they are.
        text_first: as in ``TokenSpan``.
    """
    span = TokenSpan(reduction.num_tokens, text_first)
    image, text = span.split(mask, axis=-1)
    bias = _to_bias(image) if mask.dtype == paddle.bool else image
    bias = bias.expand([reduction.batch, *bias.shape[1:]]) if bias.shape[0] == 1 else bias
    reduced = reduction.reduce_mask(bias.flatten(0, 1)).reshape([-1, bias.shape[1], 1, reduction.num_left])
    reduced = reduced == 0 if mask.dtype == paddle.bool else reduced
    if text is not None:
        text = text.expand([reduced.shape[0], *text.shape[1:]])
    return span.join(reduced, text, axis=3)


def add_group_size_bias(
    mask: paddle.Tensor | None, reduction: TokenReduction, num_text: int, dtype: paddle.dtype, *, text_first: bool
) -> paddle.Tensor:
    """Weight keys by group size, adding the size's logarithm to a mask.

    Otherwise fewer keys would give more weight to those that did not merge, such as a text's (proportional attention:
    Token Merging: Your ViT But Faster, Bolya et al. 2023, section 3).

    Args:
        mask: as of ``reduce_key_mask``, but of reduced keys, ``[batch or 1, heads or 1, queries or 1, keys]``; or None,
            and the result has one query.
        reduction: of the image's keys.
        num_text: how many keys of a text there are beside them.
        dtype: of the result.
        text_first: as in ``TokenSpan``.
    """
    assert isinstance(reduction, Matching)  # chosen keys have no groups
    bias = reduction.log_group_sizes
    if num_text:
        text = paddle.zeros([bias.shape[0], num_text], dtype="float32")
        bias = TokenSpan(reduction.num_left, text_first).join(bias, text)
    bias = bias.unsqueeze([1, 2])
    if mask is not None:
        bias = bias + (_to_bias(mask) if mask.dtype == paddle.bool else mask.astype("float32"))
    return bias.astype(dtype)


def _to_bias(seen: paddle.Tensor) -> paddle.Tensor:
    return (1 - seen.astype("float32")) * _MASKED
