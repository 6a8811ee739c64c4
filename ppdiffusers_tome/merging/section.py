"""The arithmetic of token merging: ``unmerge(attention(merge(norm(x)))) + x``, step by step, as it happens.

The block's own layers compute ``norm`` and ``attention`` and add ``x``, whatever they are (see ``attaching/hooks``).
What runs here stands between them: at every ``yield`` it hands a tensor to the block's next layer and waits for what
comes back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import paddle

from ppdiffusers_tome.merging.kv_reduction.base import FewerKeys
from ppdiffusers_tome.merging.matching import Matching


class Given(NamedTuple):
    """What a layer of the block hands over.

    Attributes:
        tokens: ``[batch, tokens, channels]``.
        leaves: False where it enters the section, True where it is the section's result.
    """

    tokens: paddle.Tensor
    leaves: bool = False


Section = Generator[paddle.Tensor | None, Given, None]


def on_merged_tokens(matching: Matching, how: str, *, text_first: bool = False) -> Section:
    """Run a stretch of a block, mostly its attention, on merged tokens.

    Args:
        matching: of the block's tokens.
        how: as in ``Matching.merge``.
        others_first: where there are more tokens than the block's own, such as a text's, these come first.

    Yields:
        In place of what was sent: merged tokens ``[batch, left, channels]`` for what enters, ``[batch, tokens,
        channels]`` for the result.
    """
    given = yield None  # x, and norm(x), are the block's
    while not given.leaves:  # once, or for each of to_q, to_k and to_v
        given = yield _merged(matching, given.tokens, how, text_first)  # and the block's attention runs on this
    yield unmerged(matching, given.tokens, text_first=text_first)  # to which the block adds x


def unmerged(matching: Matching, tokens: paddle.Tensor, *, text_first: bool) -> paddle.Tensor:
    """The result of a stretch that ran on merged tokens, for all tokens."""
    own, others = _apart(tokens, matching.num_left, text_first)
    return _together(matching.unmerge(own), others, text_first)


def on_fewer_keys(keys: FewerKeys, *, text_first: bool = False) -> Section:
    """Let attention have fewer keys and values. Nothing is unmerged, as all tokens give queries.

    Args:
        keys: of the block's tokens.
        others_first: as in ``on_merged_tokens``.

    Yields:
        The tokens, ``[batch, left, channels]``, of which the layer that was about to run makes keys or values.
    """
    given = yield None
    while True:
        tokens = given.tokens
        made = [_keys_of(keys, tokens, text_first)]
        given = yield made[0]  # to_k
        if given.tokens is tokens:
            del tokens, given  # attention runs before this goes on, and nobody needs them meanwhile
            given = yield made.pop()  # to_v, of the same tokens


# What is merged lives in these functions alone: a variable of a section would keep it alive while attention runs.


def _merged(matching: Matching, tokens: paddle.Tensor, how: str, text_first: bool) -> paddle.Tensor:
    own, others = _apart(tokens, matching.num_tokens, text_first)
    return _together(matching.merge(own, how), others, text_first)


def _keys_of(keys: FewerKeys, tokens: paddle.Tensor, text_first: bool) -> paddle.Tensor:
    own, others = _apart(tokens, keys.num_tokens, text_first)
    return _together(keys.keys_of(own), others, text_first)


def _apart(
    tokens: paddle.Tensor, num_tokens: int, text_first: bool
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """The block's own tokens, and those beside them, such as a text's, which stay as they are."""
    if tokens.shape[1] == num_tokens:
        return tokens, None
    if text_first:
        return tokens[:, -num_tokens:], tokens[:, :-num_tokens]
    return tokens[:, :num_tokens], tokens[:, num_tokens:]


def _together(own: paddle.Tensor, others: paddle.Tensor | None, text_first: bool) -> paddle.Tensor:
    if others is None:
        return own
    return paddle.concat([others, own] if text_first else [own, others], axis=1)
