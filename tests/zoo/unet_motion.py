"""UNetMotionModel as in AnimateDiff: Stable Diffusion's blocks, and motion modules over frames."""

from zoo.specimen import TEXT_DIM, UNET, Specimen

SPECIMEN = Specimen(
    "AnimateDiff", "UNetMotionModel",
    dict(
        UNET, down_block_types=("CrossAttnDownBlockMotion",) * 2, up_block_types=("CrossAttnUpBlockMotion",) * 2,
        cross_attention_dim=TEXT_DIM, num_attention_heads=2, motion_num_attention_heads=2, motion_max_seq_length=8,
    ),
    lambda model, inputs: model(
        inputs.image(4, inputs.frames), inputs.timestep, encoder_hidden_states=inputs.text()
    ),
)  # fmt: skip
