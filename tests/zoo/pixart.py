"""Transformer2DModel as in PixArt-alpha at 1024 pixels: captions and sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Inputs, Specimen


@contextlib.contextmanager
def randn_of_several_sizes() -> Iterator[None]:
    """``CaptionProjection`` asks for ``paddle.randn(tokens, channels)``; Paddle wants one shape."""
    import paddle

    randn = paddle.randn
    paddle.randn = lambda *shape, **kwargs: randn(shape if len(shape) > 1 else shape[0], **kwargs)
    try:
        yield
    finally:
        paddle.randn = randn


def construct(**config: Any) -> Any:
    import paddle
    from ppdiffusers import Transformer2DModel

    with randn_of_several_sizes():
        model = Transformer2DModel(**config)
    # It asks for approximate="tanh", which Paddle 2.6 calls True.
    model.caption_projection.act_1 = paddle.nn.GELU(approximate=True)
    return model


def call(model: Any, inputs: Inputs) -> Any:
    sizes = dict(
        resolution=inputs.rows([8 * inputs.height, 8 * inputs.width]),
        aspect_ratio=inputs.rows([inputs.height / inputs.width]),
    )
    return model(
        inputs.image(4), encoder_hidden_states=inputs.text(), timestep=inputs.timesteps, added_cond_kwargs=sizes,
        encoder_attention_mask=inputs.rows([1] * (TEXT_TOKENS - 1) + [0]),
    )  # fmt: skip


SPECIMEN = Specimen(
    "PixArt-alpha", "Transformer2DModel",
    dict(
        # Sizes and aspect ratios are conditions where sample_size is 128; a third of the channels each.
        sample_size=128, num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=8, num_layers=2,
        patch_size=2, norm_type="ada_norm_single", num_embeds_ada_norm=1000, activation_fn="gelu-approximate",
        attention_bias=True, norm_elementwise_affine=False, norm_eps=1e-6, cross_attention_dim=24,
        caption_channels=TEXT_DIM,
    ),
    call, construct=construct, pipelines="PixArt.*",
    broken="ppdiffusers fails to construct it (paddle.randn with two sizes); tested with that call mended",
)  # fmt: skip
