"""UNetSpatioTemporalConditionModel: Stable Video Diffusion. Its normalisation needs a multiple of 32 channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, FRAMES = 12, 3
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=8, out_channels=4, block_out_channels=(32, 32), layers_per_block=1,
    down_block_types=("CrossAttnDownBlockSpatioTemporal",) * 2, up_block_types=("CrossAttnUpBlockSpatioTemporal",) * 2,
    addition_time_embed_dim=8, projection_class_embeddings_input_dim=24, cross_attention_dim=CROSS_DIM,
    num_attention_heads=2, num_frames=FRAMES,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNetSpatioTemporalConditionModel

    return built(UNetSpatioTemporalConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    video = picture(batch, FRAMES, 8, height, width)
    # Frames a second, amount of motion, and noise added to the first picture.
    told = paddle.to_tensor([[6.0, 127.0, 0.02]] * batch)
    return model(video, timestep, encoder_hidden_states=normal(batch, 1, CROSS_DIM, seed=2), added_time_ids=told).sample


SPECIMEN = Specimen("Stable Video Diffusion", "UNetSpatioTemporalConditionModel", build, run)
