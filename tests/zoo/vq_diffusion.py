"""Transformer2DModel as in VQ-Diffusion: its latent is class numbers, one a token."""

from __future__ import annotations

from typing import Any

from zoo.specimen import TEXT_DIM, Inputs, Specimen, smooth_image

CLASSES, SIDE = 12, 16


def call(model: Any, inputs: Inputs) -> Any:
    """Height and width are the model's own, fixed by its learned positions."""
    import paddle

    latent = smooth_image(inputs.batch, SIDE, SIDE).flatten(1) * 3 + CLASSES // 2
    numbers, time = latent.clip(0, CLASSES - 1).astype("int64"), paddle.to_tensor(int(inputs.timestep))
    return model(numbers, encoder_hidden_states=inputs.text(), timestep=time)


SPECIMEN = Specimen(
    "VQ-Diffusion", "Transformer2DModel",
    dict(
        num_vector_embeds=CLASSES, sample_size=SIDE, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        cross_attention_dim=TEXT_DIM, norm_type="ada_norm", num_embeds_ada_norm=1000, attention_bias=True,
        activation_fn="geglu-approximate",
    ),
    call, pipelines="VQDiffusionPipeline", size=(SIDE, SIDE),
)  # fmt: skip
