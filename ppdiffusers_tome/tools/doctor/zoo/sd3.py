"""SD3Transformer2DModel: tokens of picture and text attend to each other in joint blocks."""

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

TEXT_DIM, POOLED_DIM, TEXT_TOKENS = 12, 10, 5
SETTINGS: dict[str, Any] = dict(
    sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2,
    attention_head_dim=8, joint_attention_dim=TEXT_DIM, caption_projection_dim=16, pooled_projection_dim=POOLED_DIM,
    pos_embed_max_size=96,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import SD3Transformer2DModel

    return built(SD3Transformer2DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    with attention_anywhere():
        return model(
            hidden_states=picture(batch, 4, height, width),
            encoder_hidden_states=normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2),
            pooled_projections=normal(batch, POOLED_DIM, seed=3),
            timestep=paddle.full([batch], timestep, dtype="float32"),
        ).sample


SPECIMEN = Specimen("Stable Diffusion 3", "SD3Transformer2DModel", build, run, broken=GPU_ATTENTION)
