"""Vid2VidSTUNet: ModelScope's video to video. Its downsampler pads the height by one row more, which is cut again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import (
    GPU_ATTENTION,
    Specimen,
    attention_anywhere,
    built,
    normal,
    picture,
)
from ppdiffusers_tome.tools.doctor.zoo.st_unet import CONTEXT_DIM, FRAMES
from ppdiffusers_tome.tools.doctor.zoo.st_unet import SETTINGS as ST_UNET

if TYPE_CHECKING:
    import paddle

TEXT_TOKENS = 5
SETTINGS: dict[str, Any] = {name: value for name, value in ST_UNET.items() if name != "num_tokens"}


def build() -> Any:
    from ppdiffusers import Vid2VidSTUNet

    return built(Vid2VidSTUNet, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    steps, text = paddle.full([batch], timestep, dtype="float32"), normal(batch, TEXT_TOKENS, CONTEXT_DIM, seed=2)
    with attention_anywhere():
        return model(picture(batch, 4, FRAMES, height, width), steps, y=text).sample


SPECIMEN = Specimen("ModelScope video to video", "Vid2VidSTUNet", build, run, broken=GPU_ATTENTION)
