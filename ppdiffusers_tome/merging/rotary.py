"""Rotary embeddings of reduced tokens, which have their destinations' positions.

Models hand attention one embedding for all images, queries and keys. The tokens left differ by image, and reduced keys
are fewer than queries; so it is applied here, to the outputs of the norms of queries and keys, in float32 (RoFormer, Su
et al. 2021, section 3.4.2).
"""

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
        if isinstance(embedding, tuple | list):
            parts = [part.unsqueeze(1) if part.ndim == 2 else part.repeat_interleave(2, axis=-1) for part in embedding]
        else:
            pairs = paddle.as_real(embedding).astype("float32").reshape([-1, 1, embedding.shape[-1], 2])
            parts = [part.repeat_interleave(2, axis=-1) for part in pairs.unbind(axis=-1)]
        self._parts = parts  # cosines and sines, [rows, heads or 1, channels of a head]
        self.num_text = parts[0].shape[0] - num_tokens

    @property
    def text_rotation(self) -> "Rotation":
        return self._make_rotation(slice(None, self.num_text))

    @property
    def grid_rotation(self) -> "Rotation":
        return self._make_rotation(slice(self.num_text, None))

    def find_rotation(self, positions: paddle.Tensor) -> "Rotation":
        """Return the rotation at positions, int64 ``[batch or 1, tokens]``."""
        rows = (positions + self.num_text if self.num_text else positions).flatten()
        shape = [-1, positions.shape[1], *self._parts[0].shape[1:]]
        return Rotation(*(paddle.gather(part, rows).reshape(shape).transpose([0, 2, 1, 3]) for part in self._parts))

    def _make_rotation(self, rows: slice) -> "Rotation":
        return Rotation(*(part[rows].transpose([1, 0, 2]).unsqueeze(0) for part in self._parts))


@dataclass(frozen=True, eq=False)
class Rotation:
    """The rotation of queries or keys by their positions.

    Its cosines and sines are ``[batch or 1, heads or 1, tokens, channels of a head]``.
    """

    cosine: paddle.Tensor
    sine: paddle.Tensor

    def rotate(self, x: paddle.Tensor, *, text_first: bool = True) -> paddle.Tensor:
        """Rotate ``[batch, heads, tokens, channels of a head]``, but not a text."""
        span = TokenSpan(self.cosine.shape[2], text_first)
        image, text = span.split(x, axis=2)
        real, imaginary = image.reshape([0, 0, 0, -1, 2]).unbind(axis=-1)
        quarter_turn = paddle.stack([-imaginary, real], axis=-1).flatten(3)
        rotated = image.astype("float32") * self.cosine + quarter_turn.astype("float32") * self.sine
        return span.join(rotated.astype(x.dtype), text, axis=2)
