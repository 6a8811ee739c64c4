"""The arithmetic of token merging: ``unmerge(attention(merge(norm(x)))) + x``, step by step, as it happens.

The block's own layers compute ``norm`` and ``attention`` and add ``x``, whatever they are (see ``attaching/hooks``).
What runs here stands between them: at every ``yield`` it hands a tensor to the block's next layer and waits for what
comes back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import paddle

from ppdiffusers_tome.merging.downsampling import Downsampling
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


def on_merged_tokens(matching: Matching, how: str) -> Section:
    """Run a stretch of a block, mostly its attention, on merged tokens.

    Args:
        matching: of the block's tokens.
        how: as in ``Matching.merge``.

    Yields:
        In place of what was sent: merged tokens ``[batch, left, channels]`` for what enters, ``[batch, tokens,
        channels]`` for the result.
    """
    given = yield None  # x, and norm(x), are the block's
    while not given.leaves:  # once, or for each of to_q, to_k and to_v
        given = yield _merged(matching, given.tokens, how)  # and the block's attention runs on this
    yield matching.unmerge(given.tokens)  # to which the block adds x


def on_downsampled_keys(downsampling: Downsampling) -> Section:
    """Let attention take keys and values from some tokens only. Nothing is unmerged, as all tokens give queries.

    Yields:
        The tokens, ``[batch, left, channels]``, of which the layer that was about to run makes keys or values.
    """
    given = yield None
    while True:
        tokens = given.tokens
        chosen = [_downsampled(downsampling, tokens)]
        given = yield chosen[0]  # to_k
        if given.tokens is tokens:
            del tokens, given  # attention runs before this goes on, and nobody needs them meanwhile
            given = yield chosen.pop()  # to_v, of the same tokens


# What is merged lives in these functions alone: a variable of a section would keep it alive while attention runs.


def _merged(matching: Matching, tokens: paddle.Tensor, how: str) -> paddle.Tensor:
    own, others = _apart(tokens, matching.num_tokens)
    return _together(matching.merge(own, how), others)


def _downsampled(downsampling: Downsampling, tokens: paddle.Tensor) -> paddle.Tensor:
    own, others = _apart(tokens, downsampling.num_tokens)
    return _together(downsampling.downsample(own), others)


def _apart(tokens: paddle.Tensor, num_tokens: int) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """The block's own tokens, and what follows them, such as the keys of a text, which stays as it is."""
    if tokens.shape[1] == num_tokens:
        return tokens, None
    return tokens[:, :num_tokens], tokens[:, num_tokens:]


def _together(own: paddle.Tensor, others: paddle.Tensor | None) -> paddle.Tensor:
    return own if others is None else paddle.concat([own, others], axis=1)
