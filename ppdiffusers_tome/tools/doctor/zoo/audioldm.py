"""UNet2DConditionModel as in AudioLDM and MusicLDM: oblong spectrograms, the text in the timestep's embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM = 12
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2,
    cross_attention_dim=(8, 16), attention_head_dim=2, norm_num_groups=4, class_embed_type="simple_projection",
    projection_class_embeddings_input_dim=TEXT_DIM, class_embeddings_concat=True,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel

    return built(UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    spectrogram, text = picture(batch, 4, height, width), normal(batch, TEXT_DIM, seed=2)
    # Without states of an encoder, both attentions of a block are self-attention.
    return model(spectrogram, timestep, encoder_hidden_states=None, class_labels=text).sample


SPECIMEN = Specimen(
    "AudioLDM, MusicLDM", "UNet2DConditionModel", build, run, pipelines="AudioLDMPipeline|MusicLDMPipeline"
)
