"""UNet2DConditionModel as in GLIGEN: between both attentions of a block, another one over tokens and boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture
from ppdiffusers_tome.tools.doctor.zoo.unet import CROSS_DIM, TEXT_TOKENS
from ppdiffusers_tome.tools.doctor.zoo.unet import SETTINGS as UNET

if TYPE_CHECKING:
    import paddle

SETTINGS: dict[str, Any] = dict(**UNET, attention_type="gated")
NUM_BOXES = 3


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel

    return built(UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    latent, text = picture(batch, 4, height, width), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    boxes = dict(
        boxes=paddle.to_tensor([[[0.1, 0.1, 0.6, 0.7], [0.4, 0.2, 0.9, 0.8], [0.0, 0.0, 0.0, 0.0]]] * batch),
        positive_embeddings=normal(batch, NUM_BOXES, CROSS_DIM, seed=3),
        masks=paddle.to_tensor([[1.0, 1.0, 0.0]] * batch),
    )
    return model(latent, timestep, encoder_hidden_states=text, cross_attention_kwargs=dict(gligen=boxes)).sample


SPECIMEN = Specimen("GLIGEN", "UNet2DConditionModel", build, run, pipelines=r"StableDiffusionGLIGEN.*")
