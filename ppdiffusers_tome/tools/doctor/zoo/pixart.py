"""Transformer2DModel as in PixArt-alpha at 1024 pixels: one timestep embedding for all blocks, captions, sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CAPTION_DIM, TEXT_TOKENS = 12, 5
SETTINGS: dict[str, Any] = dict(
    # ppdiffusers takes sizes and aspect ratios as conditions where sample_size is 128; a third of the channels each.
    sample_size=128, num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=8, num_layers=2,
    patch_size=2, norm_type="ada_norm_single", num_embeds_ada_norm=1000, activation_fn="gelu-approximate",
    attention_bias=True, norm_elementwise_affine=False, norm_eps=1e-6, cross_attention_dim=24,
    caption_channels=CAPTION_DIM,
)  # fmt: skip


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


def build() -> Any:
    import paddle
    from ppdiffusers import Transformer2DModel

    with randn_of_several_sizes():
        model = built(Transformer2DModel, **SETTINGS)
    # It asks for approximate="tanh", which Paddle 2.6 calls True.
    model.caption_projection.act_1 = paddle.nn.GELU(approximate=True)
    return model


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    caption = normal(batch, TEXT_TOKENS, CAPTION_DIM, seed=2)
    mask = paddle.ones([batch, TEXT_TOKENS])
    mask[:, -1] = 0
    sizes = dict(
        resolution=paddle.to_tensor([[8.0 * height, 8.0 * width]] * batch),
        aspect_ratio=paddle.to_tensor([[height / width]] * batch),
    )
    predicted = model(
        picture(batch, 4, height, width), encoder_hidden_states=caption, encoder_attention_mask=mask,
        timestep=paddle.full([batch], timestep, dtype="float32"), added_cond_kwargs=sizes,
    )  # fmt: skip
    return predicted.sample


SPECIMEN = Specimen(
    "PixArt-alpha",
    "Transformer2DModel",
    build,
    run,
    pipelines="PixArt.*",
    broken="ppdiffusers fails to construct it (paddle.randn with two sizes); tested with that call mended",
)
