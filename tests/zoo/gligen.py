"""UNet2DConditionModel as in GLIGEN: a third attention, over tokens and boxes."""

from __future__ import annotations

from typing import Any

from zoo import unet
from zoo.specimen import TEXT_DIM, Inputs, Specimen


def call(model: Any, inputs: Inputs) -> Any:
    boxes = dict(
        boxes=inputs.rows([[0.1, 0.1, 0.6, 0.7], [0.4, 0.2, 0.9, 0.8], [0.0, 0.0, 0.0, 0.0]]),
        positive_embeddings=inputs.normal(3, TEXT_DIM, seed=3), masks=inputs.rows([1, 1, 0]),
    )  # fmt: skip
    given = dict(encoder_hidden_states=inputs.text(), cross_attention_kwargs=dict(gligen=boxes))
    return model(inputs.image(4), inputs.timestep, **given)


SPECIMEN = Specimen(
    "GLIGEN", "UNet2DConditionModel", dict(unet.SPECIMEN.config, attention_type="gated"), call,
    pipelines=r"StableDiffusionGLIGEN.*",
)  # fmt: skip
