"""Rotary position embeddings of the tokens that are left: a merged token has its destination's position.

Models hand one embedding to their attention, for the whole batch and for queries and keys alike. Which tokens are left
differs by image, and with downsampled keys there are fewer of those than queries; so it is applied here, to what leaves
the norms of queries and keys, in the arithmetic of ppdiffusers (RoFormer, Su et al. 2021, section 3.4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import paddle

# The real form, cosines and sines ``[rows, channels of a head]``; or complex, ``[..., rows, half of those channels]``.
Embedding: TypeAlias = tuple[paddle.Tensor, paddle.Tensor] | paddle.Tensor


class Rotary:
    """The embedding of all tokens of attention: those of a grid, and maybe those of a text before them.

    Args:
        embedding: as the model made it.
        num_tokens: the last of its rows, which are the grid's.
    """

    def __init__(self, embedding: Embedding, num_tokens: int) -> None:
        if isinstance(embedding, tuple | list):
            self._is_complex, self._parts = False, list(embedding)
        else:
            self._is_complex, self._parts = True, [paddle.as_real(embedding).reshape([-1, embedding.shape[-1] * 2])]
        self.num_text = self._parts[0].shape[0] - num_tokens

    @property
    def of_text(self) -> Rotation:
        """That of the text's tokens."""
        return self._turn([part[: self.num_text].unsqueeze([0, 1]) for part in self._parts])

    @property
    def of_all(self) -> Rotation:
        """That of the grid's tokens."""
        return self._turn([part[self.num_text :].unsqueeze([0, 1]) for part in self._parts])

    def of(self, positions: paddle.Tensor) -> Rotation:
        """That of some tokens of the grid, int64 ``[batch or 1, some]``."""
        rows = (positions + self.num_text if self.num_text else positions).flatten()
        shape = [-1, 1, positions.shape[1], self._parts[0].shape[1]]
        return self._turn([paddle.gather(part, rows).reshape(shape) for part in self._parts])

    def _turn(self, parts: list[paddle.Tensor]) -> Rotation:
        return Rotation(parts, self._is_complex)


def num_rows(embedding: Embedding) -> int:
    """How many tokens an embedding is of."""
    return embedding[0].shape[0] if isinstance(embedding, (tuple, list)) else embedding.shape[-2]


@dataclass(frozen=True, eq=False)
class Rotation:
    """How queries or keys are turned.

    Attributes:
        parts: cosines and sines, or pairs of both, each ``[batch or 1, 1, tokens, channels of a head]``.
        is_complex: which of the two.
    """

    parts: list[paddle.Tensor]
    is_complex: bool

    @property
    def num_tokens(self) -> int:
        """How many are turned."""
        return self.parts[0].shape[2]

    def turned(self, x: paddle.Tensor, *, text_first: bool = True) -> paddle.Tensor:
        """Queries or keys ``[batch, heads, tokens, channels of a head]``; more tokens than are turned stay as they are.

        Args:
            x: what leaves the norm.
            others_first: whether those stand before the ones that are turned.
        """
        others = x.shape[2] - self.num_tokens
        if others == 0:
            return self._turned(x)
        if text_first:
            return paddle.concat([x[:, :, :others], self._turned(x[:, :, others:])], axis=2)
        return paddle.concat([self._turned(x[:, :, :-others]), x[:, :, -others:]], axis=2)

    def _turned(self, x: paddle.Tensor) -> paddle.Tensor:
        pairs = x.reshape([0, 0, 0, -1, 2])
        if self.is_complex:
            turn = paddle.as_complex(self.parts[0].reshape([0, 0, 0, -1, 2]))
            return paddle.as_real(paddle.as_complex(pairs.astype("float64")) * turn).flatten(3).astype(x.dtype)
        cosine, sine = self.parts
        one, other = pairs.unbind(axis=-1)
        across = paddle.stack([-other, one], axis=-1).flatten(3)
        return (x.astype("float32") * cosine + across.astype("float32") * sine).astype(x.dtype)
