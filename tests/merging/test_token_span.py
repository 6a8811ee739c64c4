"""An image's tokens beside a text's: split and joined again, on any axis."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome.merging.token_span import TokenSpan


class HalveImage(paddle.nn.Layer):
    def __init__(self, span: TokenSpan) -> None:
        super().__init__()
        self.span = span

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        image, text = self.span.split(x)
        return self.span.join(image / 2, text)


@pytest.mark.parametrize("text_first", [True, False])
def test_a_program_may_not_know_the_length_of_the_text(text_first: bool) -> None:
    layer = HalveImage(TokenSpan(5, text_first))
    spec = [paddle.static.InputSpec([None, None, 3], "float32")]
    for tokens in (8, 5):
        x = tiny.array((2, tokens, 3))
        expected = layer.forward(x).numpy()
        traced = paddle.jit.to_static(HalveImage(TokenSpan(5, text_first)), input_spec=spec, full_graph=True)
        assert np.array_equal(traced(x).numpy(), expected)
