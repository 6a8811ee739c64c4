"""UNet2DConditionModel as in the latent upscaler: attention on pictures, to itself at the coarsest level only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS, CONDITION_DIM = 12, 5, 140
# Norms have groups of 32 channels. Where a level is as wide as the embedding of time, twice the first level, its blocks
# attend to themselves.
SETTINGS: dict[str, Any] = dict(
    sample_size=32, in_channels=8, out_channels=5, block_out_channels=(32, 32, 64, 64), layers_per_block=1,
    act_fn="gelu", attention_head_dim=4, norm_num_groups=None, time_cond_proj_dim=CONDITION_DIM, conv_in_kernel=1,
    conv_out_kernel=1, cross_attention_dim=CROSS_DIM, only_cross_attention=False, mid_block_type=None,
    down_block_types=("KDownBlock2D", "KCrossAttnDownBlock2D", "KCrossAttnDownBlock2D", "KCrossAttnDownBlock2D"),
    up_block_types=("KCrossAttnUpBlock2D", "KCrossAttnUpBlock2D", "KCrossAttnUpBlock2D", "KUpBlock2D"),
    resnet_time_scale_shift="scale_shift", time_embedding_type="fourier", timestep_post_act="gelu",
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel

    return built(UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """The UNet sees twice the size of the latent that is to be enlarged, and the logarithm of a noise level as time."""
    import paddle

    text, condition = normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2), normal(batch, CONDITION_DIM, seed=3)
    time = 0.25 * paddle.log(paddle.to_tensor(timestep / 100.0))
    latent = picture(batch, 8, 2 * height, 2 * width)
    return model(latent, time, encoder_hidden_states=text, timestep_cond=condition).sample


SPECIMEN = Specimen(
    "the latent upscaler", "UNet2DConditionModel", build, run, pipelines="StableDiffusionLatentUpscalePipeline"
)
