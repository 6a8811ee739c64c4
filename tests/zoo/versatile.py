"""UNet2DConditionModel as in Versatile Diffusion: two transformers, for text and image."""

from __future__ import annotations

from typing import Any

from zoo import unet
from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Specimen

IMAGE_TOKENS = 7


def construct(**config: Any) -> Any:
    from ppdiffusers import UNet2DConditionModel
    from ppdiffusers.models.dual_transformer_2d import DualTransformer2DModel

    model = UNet2DConditionModel(**config)
    for layer in model.sublayers():
        if isinstance(layer, DualTransformer2DModel):
            layer.condition_lengths = [TEXT_TOKENS, IMAGE_TOKENS]
    return model


SPECIMEN = Specimen(
    "Versatile Diffusion, dual guided", "UNet2DConditionModel", dict(unet.SPECIMEN.config, dual_cross_attention=True),
    lambda model, inputs: model(
        inputs.image(4), inputs.timestep,
        encoder_hidden_states=inputs.normal(TEXT_TOKENS + IMAGE_TOKENS, TEXT_DIM, seed=2),
    ),
    construct=construct, pipelines="VersatileDiffusionDualGuidedPipeline",
)  # fmt: skip
