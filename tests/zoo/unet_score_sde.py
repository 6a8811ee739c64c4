"""UNet2DModel as in the score SDE: a second, smaller image beside the first."""

from zoo.specimen import Specimen

SPECIMEN = Specimen(
    "score SDE", "UNet2DModel",
    # Skip blocks have groups of their own, a quarter of the channels and 32 at most.
    dict(
        sample_size=16, in_channels=3, out_channels=3, block_out_channels=(32, 32), layers_per_block=1,
        down_block_types=("SkipDownBlock2D", "AttnSkipDownBlock2D"), attention_head_dim=8, norm_num_groups=8,
        up_block_types=("AttnSkipUpBlock2D", "SkipUpBlock2D"), time_embedding_type="fourier", freq_shift=0,
        flip_sin_to_cos=True, center_input_sample=False, mid_block_scale_factor=1.41, norm_eps=1e-6,
    ),
    lambda model, inputs: model(inputs.image(3), inputs.timestep / 100),  # time is a noise level
    pipelines="ScoreSdeVePipeline", scheduler=None,
)  # fmt: skip
