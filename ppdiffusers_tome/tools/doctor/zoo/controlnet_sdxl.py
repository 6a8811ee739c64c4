"""ControlNetModel as for SDXL: the downward half of its UNet, beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.controlnet import flat
from ppdiffusers_tome.tools.doctor.zoo.sdxl import CROSS_DIM, POOLED_DIM, TEXT_TOKENS
from ppdiffusers_tome.tools.doctor.zoo.sdxl import SETTINGS as SDXL
from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

SETTINGS: dict[str, Any] = {
    **{name: value for name, value in SDXL.items() if name not in ("sample_size", "out_channels", "up_block_types")},
    "conditioning_embedding_out_channels": (8, 16),
}


def build() -> Any:
    from ppdiffusers import ControlNetModel

    return built(ControlNetModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    sizes = paddle.to_tensor([[height, width, 0, 0, height, width]] * batch, dtype="float32")
    added = dict(text_embeds=normal(batch, POOLED_DIM, seed=3), time_ids=sizes)
    latent, text = picture(batch, 4, height, width), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    control = picture(batch, 3, 2 * height, 2 * width, seed=3)
    return flat(model(latent, timestep, text, control, added_cond_kwargs=added, return_dict=False))


SPECIMEN = Specimen("ControlNet of SDXL", "ControlNetModel", build, run, pipelines=r"StableDiffusionXLControlNet.*")
