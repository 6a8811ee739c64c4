"""LVDMUNet3DModel as in unconditional video: channels precede tokens, so nothing merges."""

from zoo.specimen import FRAMES, Specimen

SPECIMEN = Specimen(
    "Latent Video Diffusion, unconditional", "LVDMUNet3DModel",
    dict(
        image_size=16, in_channels=4, out_channels=4, model_channels=32, num_heads=2, num_res_blocks=1,
        attention_resolutions=[1, 2], channel_mult=[1, 1], temporal_length=FRAMES, padding_t=0, legacy=False,
    ),
    lambda model, inputs: model(inputs.image(4, inputs.frames), inputs.timesteps.astype("int64")),
    pipelines="LVDMUncondPipeline", refused_block="STAttentionBlock",
)  # fmt: skip
