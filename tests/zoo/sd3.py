"""SD3Transformer2DModel: tokens of image and text attend to each other in joint blocks."""

from zoo.specimen import GPU_ATTENTION, TEXT_DIM, Specimen, attention_anywhere

POOLED_DIM = 10

SPECIMEN = Specimen(
    "Stable Diffusion 3", "SD3Transformer2DModel",
    dict(
        sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2,
        attention_head_dim=8, joint_attention_dim=TEXT_DIM, caption_projection_dim=16,
        pooled_projection_dim=POOLED_DIM, pos_embed_max_size=96,
    ),
    lambda model, inputs: model(
        hidden_states=inputs.image(4), encoder_hidden_states=inputs.text(),
        pooled_projections=inputs.normal(POOLED_DIM, seed=3), timestep=inputs.timesteps,
    ),
    mended=attention_anywhere, broken=GPU_ATTENTION,
)  # fmt: skip
