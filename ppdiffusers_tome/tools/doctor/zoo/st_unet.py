"""STUNetModel: ModelScope's image to video, written after OpenAI's UNets, with a BasicTransformerBlock of its own."""

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

if TYPE_CHECKING:
    import paddle

# Its decoder takes contexts of 1024 channels whatever it is told, and its norms a multiple of 32.
CONTEXT_DIM, IMAGE_DIM, FRAMES = 1024, 10, 3
SETTINGS: dict[str, Any] = dict(
    in_channels=4, out_channels=4, dim=32, y_dim=IMAGE_DIM, num_tokens=2, context_channels=CONTEXT_DIM,
    dim_mult=[1, 1], num_heads=2, head_dim=16, num_res_blocks=1, attn_scales=[1.0, 0.5],
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import STUNetModel

    return built(STUNetModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    steps = paddle.full([batch], timestep, dtype="float32")
    with attention_anywhere():
        return model(picture(batch, 4, FRAMES, height, width), steps, y=normal(batch, 1, IMAGE_DIM, seed=2)).sample


SPECIMEN = Specimen("ModelScope image to video", "STUNetModel", build, run, broken=GPU_ATTENTION)
