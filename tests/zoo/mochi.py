"""MochiTransformer3DModel: text to video, with a rotary embedding that is learned for every head."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from zoo.specimen import TEXT_TOKENS, Inputs, Specimen, attention_anywhere


@contextlib.contextmanager
def _index_copies() -> Iterator[None]:
    """Index copies of tensors, as Paddle 3.3.1 misreads transposed views."""
    import paddle

    own = paddle.Tensor.__getitem__
    paddle.Tensor.__getitem__ = lambda tensor, item: own(tensor.clone() if isinstance(item, tuple) else tensor, item)
    try:
        with attention_anywhere():
            yield
    finally:
        paddle.Tensor.__getitem__ = own


def _call(model: Any, inputs: Inputs) -> Any:
    import paddle

    seen = paddle.ones([inputs.batch, TEXT_TOKENS], dtype="bool")
    seen[-1, -2:] = False  # of the last text
    return model(
        hidden_states=inputs.image(4, inputs.frames), encoder_hidden_states=inputs.text(16),
        timestep=inputs.timesteps, encoder_attention_mask=seen,
    )  # fmt: skip


SPECIMEN = Specimen(
    "Mochi", "MochiTransformer3DModel",
    dict(
        patch_size=2, num_attention_heads=3, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
        in_channels=4, text_embed_dim=16, time_embed_dim=16,
    ),
    _call, mended=_index_copies, since="0.30", needs_paddle_3=True,
    broken="with Paddle 3.3.1 on a CPU ppdiffusers fails as it indexes transposed tensors; tested with that mended",
)  # fmt: skip
