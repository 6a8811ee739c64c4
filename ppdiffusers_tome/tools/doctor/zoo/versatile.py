"""UNet2DConditionModel as Versatile Diffusion guides it by text and picture at once: two transformers side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture
from ppdiffusers_tome.tools.doctor.zoo.unet import CROSS_DIM
from ppdiffusers_tome.tools.doctor.zoo.unet import SETTINGS as UNET

if TYPE_CHECKING:
    import paddle

TEXT_TOKENS, IMAGE_TOKENS = 5, 7
SETTINGS: dict[str, Any] = dict(UNET, dual_cross_attention=True)


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel
    from ppdiffusers.models.dual_transformer_2d import DualTransformer2DModel

    model = built(UNet2DConditionModel, **SETTINGS)
    for layer in model.sublayers():
        if isinstance(layer, DualTransformer2DModel):
            layer.condition_lengths = [TEXT_TOKENS, IMAGE_TOKENS]
    return model


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    conditions = normal(batch, TEXT_TOKENS + IMAGE_TOKENS, CROSS_DIM, seed=2)
    return model(picture(batch, 4, height, width), timestep, encoder_hidden_states=conditions).sample


SPECIMEN = Specimen(
    "Versatile Diffusion, dual guided",
    "UNet2DConditionModel",
    build,
    run,
    pipelines="VersatileDiffusionDualGuidedPipeline",
)
