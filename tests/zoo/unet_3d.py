"""UNet3DConditionModel as in text to video: attention in every frame, then over frames."""

from zoo.specimen import TEXT_DIM, UNET, Specimen

SPECIMEN = Specimen(
    "text to video, video to video", "UNet3DConditionModel",
    dict(
        UNET, down_block_types=("CrossAttnDownBlock3D",) * 2, up_block_types=("CrossAttnUpBlock3D",) * 2,
        cross_attention_dim=TEXT_DIM, attention_head_dim=4,
    ),
    lambda model, inputs: model(
        inputs.image(4, inputs.frames), inputs.timestep, encoder_hidden_states=inputs.text()
    ),
)  # fmt: skip
