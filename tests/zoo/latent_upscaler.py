"""UNet2DConditionModel as in the latent upscaler: self-attention at the coarsest level only."""

from __future__ import annotations

from typing import Any

from zoo.specimen import TEXT_DIM, Inputs, Specimen

CONDITION_DIM = 140


def call(model: Any, inputs: Inputs) -> Any:
    """Call the UNet with twice the latent, and a logarithm of noise as time."""
    time = 0.25 * (inputs.timesteps[0] / 100).log()
    condition = inputs.normal(CONDITION_DIM, seed=3)
    return model(inputs.image(8, scale=2), time, encoder_hidden_states=inputs.text(), timestep_cond=condition)


SPECIMEN = Specimen(
    "the latent upscaler", "UNet2DConditionModel",
    # Norms have groups of 32 channels. Where a level is as wide as the embedding of time, twice the first level, its
    # blocks attend to themselves.
    dict(
        sample_size=32, in_channels=8, out_channels=5, block_out_channels=(32, 32, 64, 64), layers_per_block=1,
        act_fn="gelu", attention_head_dim=4, norm_num_groups=None, time_cond_proj_dim=CONDITION_DIM, conv_in_kernel=1,
        conv_out_kernel=1, cross_attention_dim=TEXT_DIM, only_cross_attention=False, mid_block_type=None,
        down_block_types=("KDownBlock2D", "KCrossAttnDownBlock2D", "KCrossAttnDownBlock2D", "KCrossAttnDownBlock2D"),
        up_block_types=("KCrossAttnUpBlock2D", "KCrossAttnUpBlock2D", "KCrossAttnUpBlock2D", "KUpBlock2D"),
        resnet_time_scale_shift="scale_shift", time_embedding_type="fourier", timestep_post_act="gelu",
    ),
    call, pipelines="StableDiffusionLatentUpscalePipeline", scheduler=None,
)  # fmt: skip
