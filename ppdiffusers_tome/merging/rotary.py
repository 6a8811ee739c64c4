"""Rotary embeddings of reduced tokens, which have their destinations' positions.

Models hand attention one embedding for all images, queries and keys. The tokens left differ by image, and reduced keys
are fewer than queries; so it is applied here, to the outputs of the norms of queries and keys, in the arithmetic of
ppdiffusers (RoFormer, Su et al. 2021, section 3.4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import paddle

from ppdiffusers_tome.merging.token_span import TokenSpan

# The real form, cosines and sines ``[rows, channels of a head]``, or of every head ``[rows, heads, half of those
# channels]``; or complex, ``[..., rows, half of those channels]``.
Embedding: TypeAlias = tuple[paddle.Tensor, paddle.Tensor] | paddle.Tensor


class RotaryEmbedding:
    """The rotary embedding of a text, if any, and a grid."""

    def __init__(self, embedding: Embedding, num_tokens: int) -> None:
        self._is_complex = not isinstance(embedding, tuple | list)
        if isinstance(embedding, tuple | list):
            parts = [part.unsqueeze(1) if part.ndim == 2 else part.repeat_interleave(2, axis=-1) for part in embedding]
        else:
            parts = [paddle.as_real(embedding).reshape([-1, 1, embedding.shape[-1] * 2])]
        self._parts = parts  # [rows, heads or 1, channels of a head]
        self.num_text = self._parts[0].shape[0] - num_tokens

    @property
    def text_rotation(self) -> Rotation:
        return self._make_rotation(slice(None, self.num_text))

    @property
    def grid_rotation(self) -> Rotation:
        return self._make_rotation(slice(self.num_text, None))

    def find_rotation(self, positions: paddle.Tensor) -> Rotation:
        """Return the rotation at positions, int64 ``[batch or 1, tokens]``."""
        rows = (positions + self.num_text if self.num_text else positions).flatten()
        shape = [-1, positions.shape[1], *self._parts[0].shape[1:]]
        parts = [paddle.gather(part, rows).reshape(shape).transpose([0, 2, 1, 3]) for part in self._parts]
        return Rotation(parts, self._is_complex)

    def _make_rotation(self, rows: slice) -> Rotation:
        parts = [part[rows].transpose([1, 0, 2]).unsqueeze(0) for part in self._parts]
        return Rotation(parts, self._is_complex)


@dataclass(frozen=True, eq=False)
class Rotation:
    """The rotation of queries or keys by their positions.

    Its parts are cosines and sines, or pairs of both (complex), each ``[batch or 1, heads or 1, tokens, channels of a
    head]``.
    """

    parts: list[paddle.Tensor]
    is_complex: bool

    def rotate(self, x: paddle.Tensor, *, text_first: bool = True) -> paddle.Tensor:
        """Rotate ``[batch, heads, tokens, channels of a head]``, but not a text."""
        span = TokenSpan(self.parts[0].shape[2], text_first)
        image, text = span.split(x, axis=2)
        pairs = image.reshape([0, 0, 0, -1, 2])
        if self.is_complex:
            factor = paddle.as_complex(self.parts[0].reshape([0, 0, 0, -1, 2]))
            rotated = paddle.as_real(paddle.as_complex(pairs.astype("float64")) * factor).flatten(3)
        else:
            cosine, sine = self.parts
            real, imaginary = pairs.unbind(axis=-1)
            quarter_turn = paddle.stack([-imaginary, real], axis=-1).flatten(3)
            rotated = image.astype("float32") * cosine + quarter_turn.astype("float32") * sine
        return span.join(rotated.astype(x.dtype), text, axis=2)
