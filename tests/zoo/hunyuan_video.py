"""HunyuanVideoTransformer3DModel: dual, then single blocks; its text refiner has no grid."""

from __future__ import annotations

from typing import Any

from zoo.specimen import (
    AVX512_NORM,
    TEXT_DIM,
    TEXT_TOKENS,
    Inputs,
    Specimen,
    norms_anywhere,
)

POOLED_DIM = 10


def _call(model: Any, inputs: Inputs) -> Any:
    import paddle

    # The last text has a token less.
    seen = paddle.ones([inputs.batch, TEXT_TOKENS], dtype="int64")
    seen[-1, -1] = 0
    return model(
        inputs.image(4, inputs.frames), inputs.timesteps, inputs.text(), seen,
        inputs.normal(POOLED_DIM, seed=3), paddle.full([inputs.batch], 6000.0),
    )  # fmt: skip


SPECIMEN = Specimen(
    "HunyuanVideo", "HunyuanVideoTransformer3DModel",
    dict(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=2, num_single_layers=2,
        num_refiner_layers=1, patch_size=2, patch_size_t=1, text_embed_dim=TEXT_DIM, pooled_projection_dim=POOLED_DIM,
        rope_axes_dim=(4, 4, 4),
    ),
    _call, mended=norms_anywhere, broken=AVX512_NORM, since="0.29.1",
)  # fmt: skip
