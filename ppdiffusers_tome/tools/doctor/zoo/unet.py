"""UNet2DConditionModel as in Stable Diffusion 1 and 2: cross attention at every level, finest at the latent's size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS = 12, 5
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2,
    cross_attention_dim=CROSS_DIM, attention_head_dim=2, norm_num_groups=4,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel

    return built(UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    latent, text = picture(batch, 4, height, width), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    return model(latent, timestep, encoder_hidden_states=text).sample


SPECIMEN = Specimen("Stable Diffusion 1 and 2", "UNet2DConditionModel", build, run)
