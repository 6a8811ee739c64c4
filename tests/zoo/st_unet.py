"""STUNetModel: ModelScope's image to video, with a BasicTransformerBlock of its own."""

from zoo.specimen import GPU_ATTENTION, Specimen, attention_anywhere

# Its decoder takes contexts of 1024 channels whatever it is told, and its norms a multiple of 32.
CONTEXT_DIM, IMAGE_DIM = 1024, 10

SPECIMEN = Specimen(
    "ModelScope image to video", "STUNetModel",
    dict(
        in_channels=4, out_channels=4, dim=32, y_dim=IMAGE_DIM, num_tokens=2, context_channels=CONTEXT_DIM,
        dim_mult=[1, 1], num_heads=2, head_dim=16, num_res_blocks=1, attn_scales=[1.0, 0.5],
    ),
    lambda model, inputs: model(
        inputs.image(4, inputs.frames), inputs.timesteps, y=inputs.normal(1, IMAGE_DIM, seed=2)
    ),
    mended=attention_anywhere, broken=GPU_ATTENTION,
)  # fmt: skip
