"""UNet2DConditionModel as in the x4 upscaler: the finer levels attend to the text only, twice in a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS, NUM_NOISE_LEVELS = 12, 5, 1000
SETTINGS: dict[str, Any] = dict(
    sample_size=32, in_channels=7, out_channels=4, block_out_channels=(8, 8, 16, 16), layers_per_block=1,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    only_cross_attention=(True, True, True, False), cross_attention_dim=CROSS_DIM, attention_head_dim=4,
    use_linear_projection=True, norm_num_groups=4, num_class_embeds=NUM_NOISE_LEVELS,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel

    return built(UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """Twice the size asked for: the only self-attention is at level 8, where 16x16 would be a single cell."""
    import paddle

    latent, text = picture(batch, 7, 2 * height, 2 * width), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    noise_level = paddle.full([batch], 20, dtype="int64")
    return model(latent, timestep, encoder_hidden_states=text, class_labels=noise_level).sample


SPECIMEN = Specimen("the x4 upscaler", "UNet2DConditionModel", build, run, pipelines="StableDiffusionUpscalePipeline")
