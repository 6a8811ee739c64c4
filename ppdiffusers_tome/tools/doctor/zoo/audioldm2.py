"""AudioLDM2UNet2DConditionModel: three transformers a layer, for the sound itself and for two texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM, GENERATED_DIM, TEXT_TOKENS = 12, 10, 5
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2,
    cross_attention_dim=((None, GENERATED_DIM, TEXT_DIM),) * 2, attention_head_dim=2, norm_num_groups=4,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers.pipelines.audioldm2 import AudioLDM2UNet2DConditionModel

    return built(AudioLDM2UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    generated, text = normal(batch, 4, GENERATED_DIM, seed=2), normal(batch, TEXT_TOKENS, TEXT_DIM, seed=3)
    spectrogram = picture(batch, 4, height, width)
    return model(spectrogram, timestep, encoder_hidden_states=generated, encoder_hidden_states_1=text).sample


SPECIMEN = Specimen("AudioLDM 2", "AudioLDM2UNet2DConditionModel", build, run)
