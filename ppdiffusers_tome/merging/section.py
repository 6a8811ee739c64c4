"""The arithmetic of token merging: ``unmerge(attention(merge(norm(x)))) + x``, step by step, as it happens.

The block's own layers compute ``norm`` and ``attention`` and add ``x``, whatever they are (see ``attaching/hooks``).
What runs here stands between them: at every ``yield`` it hands a tensor to the block's next layer and waits for what
comes back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import paddle

from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.token_span import TokenSpan


class Given(NamedTuple):
    """What a layer of the block hands over.

    Attributes:
        tokens: ``[batch, tokens, channels]``.
        leaves: False where it enters the section, True where it is the section's result.
    """

    tokens: paddle.Tensor
    leaves: bool = False


Section = Generator[paddle.Tensor | None, Given, None]


def on_merged_tokens(matching: TokenReduction, how: str, *, text_first: bool = False) -> Section:
    """Run a stretch of a block, mostly its attention, on merged tokens.

    Args:
        matching: of the block's tokens.
        how: as in ``Matching.reduce``.
        text_first: where there are more tokens than the block's own, such as a text's, these come first.

    Yields:
        In place of what was sent: merged tokens ``[batch, left, channels]`` for what enters, ``[batch, tokens,
        channels]`` for the result.
    """
    given = yield None  # x, and norm(x), are the block's
    while not given.leaves:  # once, or for each of to_q, to_k and to_v
        given = yield _merged(matching, given.tokens, how, text_first)  # and the block's attention runs on this
    yield unmerged(matching, given.tokens, text_first=text_first)  # to which the block adds x


def unmerged(matching: TokenReduction, tokens: paddle.Tensor, *, text_first: bool) -> paddle.Tensor:
    """The result of a stretch that ran on merged tokens, for all tokens."""
    span = TokenSpan(matching.num_left, text_first)
    image, text = span.split(tokens)
    return span.join(matching.restore(image), text)


def on_fewer_keys(keys: TokenReduction, *, text_first: bool = False) -> Section:
    """Let attention have fewer keys and values. Nothing is unmerged, as all tokens give queries.

    Args:
        keys: of the block's tokens.
        text_first: as in ``on_merged_tokens``.

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


def _merged(matching: TokenReduction, tokens: paddle.Tensor, how: str, text_first: bool) -> paddle.Tensor:
    span = TokenSpan(matching.num_tokens, text_first)
    image, text = span.split(tokens)
    return span.join(matching.reduce(image, how), text)


def _keys_of(keys: TokenReduction, tokens: paddle.Tensor, text_first: bool) -> paddle.Tensor:
    span = TokenSpan(keys.num_tokens, text_first)
    image, text = span.split(tokens)
    return span.join(keys.reduce(image), text)
