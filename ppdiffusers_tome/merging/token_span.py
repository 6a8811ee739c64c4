"""The place of an image's tokens beside a text's."""

from dataclasses import dataclass

import paddle


@dataclass(frozen=True)
class TokenSpan:
    """The image's tokens in a sequence, maybe beside a text's.

    Example:
        >>> sequence = paddle.to_tensor([[7, 8, 0, 1, 2]])
        >>> image, text = TokenSpan(num_tokens=3, text_first=True).split(sequence)
        >>> image.tolist(), text.tolist()
        ([[0, 1, 2]], [[7, 8]])
    """

    num_tokens: int  # the image's, prefix included
    text_first: bool  # True where the text precedes the image

    @paddle.jit.not_to_static  # tracing would make a branch of a dynamic text length
    def split(self, x: paddle.Tensor, axis: int = 1) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """Split the image's tokens from the text's, None where there are none."""
        if x.shape[axis] == self.num_tokens:
            return x, None
        # Both are counted from the image's end of the sequence, as a program may not know the text's length.
        if self.text_first:
            image, text = slice(-self.num_tokens, None), slice(None, -self.num_tokens)
        else:
            image, text = slice(None, self.num_tokens), slice(self.num_tokens, None)
        before = (slice(None),) * (axis % x.ndim)
        return x[(*before, image)], x[(*before, text)]

    def join(self, image: paddle.Tensor, text: paddle.Tensor | None, axis: int = 1) -> paddle.Tensor:
        """Join what ``split`` returned, maybe with fewer image tokens."""
        if text is None:
            return image
        return paddle.concat([text, image] if self.text_first else [image, text], axis=axis)
