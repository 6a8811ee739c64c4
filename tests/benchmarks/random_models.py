"""Denoisers of known shapes with random weights, for speed and memory."""

from __future__ import annotations

from typing import Any

# Stable Diffusion 1.5's config.json beside UNet2DConditionModel's defaults: 860 million weights.
_SD15 = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
_SDXL = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), "use_linear_projection": True,
    "addition_embed_type": "text_time",
}  # fmt: skip
RANDOM_UNETS: dict[str, dict[str, Any]] = {
    "sd15-random": {**_SD15, "block_out_channels": (320, 640, 1280, 1280)},
    "sd15-tiny-random": {
        **_SD15, "cross_attention_dim": 32, "block_out_channels": (16, 32, 32, 32), "norm_num_groups": 8,
        "layers_per_block": 1,
    },
    "sdxl-random": {
        **_SDXL, "sample_size": 128, "cross_attention_dim": 2048, "block_out_channels": (320, 640, 1280),
        "attention_head_dim": (5, 10, 20), "transformer_layers_per_block": (1, 2, 10), "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 1280 + 6 * 256,
    },
    "sdxl-tiny-random": {
        **_SDXL, "sample_size": 16, "cross_attention_dim": 32, "block_out_channels": (16, 32, 32),
        "attention_head_dim": (2, 4, 4), "transformer_layers_per_block": (1, 1, 2), "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 32 + 6 * 8, "norm_num_groups": 8, "layers_per_block": 1,
    },
}  # fmt: skip
SD15_VAE: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
}  # fmt: skip
RANDOM_SD3 = "sd3-random"
RANDOM_MODELS = (*RANDOM_UNETS, RANDOM_SD3)
_SD3 = {  # transformer/config.json of stabilityai/stable-diffusion-3-medium-diffusers
    "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 24,
    "attention_head_dim": 64, "num_attention_heads": 24, "joint_attention_dim": 4096, "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048, "pos_embed_max_size": 192,
}  # fmt: skip
_POOL = 2**22


def random_model(name: str, *, dtype: str = "float32") -> Any:
    """Build a model in evaluation mode, its weights the same every time.

    Args:
        name: of ``RANDOM_MODELS``.
        dtype: ``float32``, ``float16`` or ``bfloat16``; the model is made in the first and cast.
    """
    import paddle
    import ppdiffusers
    from paddle.nn.initializer import Constant, set_global_initializer

    set_global_initializer(Constant(0.0), Constant(0.0))
    try:
        if name == RANDOM_SD3:
            model = ppdiffusers.SD3Transformer2DModel(**_SD3)
        else:
            model = ppdiffusers.UNet2DConditionModel(**RANDOM_UNETS[name])
    finally:
        set_global_initializer(None)
    _fill(model)
    model.eval()
    return model if dtype == "float32" else model.to(dtype=getattr(paddle, dtype))


def _fill(model: Any) -> None:
    """Scale normal numbers by the fan-in of each weight, as initialisers do.

    They are one pool, repeated: to sample 860 million of them takes longer than a UNet call.
    """
    import numpy as np
    import paddle

    pool = np.random.default_rng(0).standard_normal(_POOL, np.float32)
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        if len(shape) > 1:
            # Paddle stores linear layers as [in, out], convolutions as [out, in, height, width].
            fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
            parameter.set_value(paddle.to_tensor(np.resize(pool, shape) / np.float32(np.sqrt(fan_in))))
        elif name.endswith("weight"):
            parameter.set_value(paddle.ones_like(parameter))  # a norm's
