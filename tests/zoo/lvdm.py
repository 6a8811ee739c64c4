"""LVDMUNet3DModel as in text to video: attention over space and time in a block."""

from zoo.specimen import FRAMES, GPU_ATTENTION, TEXT_DIM, Specimen, attention_anywhere

SPECIMEN = Specimen(
    "Latent Video Diffusion, text to video", "LVDMUNet3DModel",
    dict(
        image_size=16, in_channels=4, out_channels=4, model_channels=32, num_res_blocks=1, num_heads=2,
        attention_resolutions=[1, 2], channel_mult=[1, 1], transformer_depth=1, context_dim=TEXT_DIM,
        use_temporal_transformer=True, use_relative_position=True, temporal_length=FRAMES, padding_t=0,
        checkpoint=False,
    ),
    lambda model, inputs: model(
        inputs.image(4, inputs.frames), inputs.timesteps.astype("int64"), context=inputs.text()
    ),
    mended=attention_anywhere, broken=GPU_ATTENTION,
)  # fmt: skip
