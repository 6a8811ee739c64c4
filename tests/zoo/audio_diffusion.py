"""UNet2DModel as in Audio Diffusion: attention at the coarse level alone."""

from zoo.specimen import UNET, Specimen

SPECIMEN = Specimen(
    "Audio Diffusion", "UNet2DModel",
    dict(
        UNET, sample_size=(16, 16), in_channels=1, out_channels=1, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    lambda model, inputs: model(inputs.image(1), inputs.timestep),
    pipelines="AudioDiffusionPipeline",
)  # fmt: skip
