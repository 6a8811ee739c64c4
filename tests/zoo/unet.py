"""UNet2DConditionModel as in Stable Diffusion 1 and 2: cross attention at every level."""

from zoo.specimen import TEXT_DIM, UNET, Specimen

SPECIMEN = Specimen(
    "Stable Diffusion 1 and 2", "UNet2DConditionModel",
    dict(
        UNET, down_block_types=("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2,
        cross_attention_dim=TEXT_DIM, attention_head_dim=2,
    ),
    lambda model, inputs: model(inputs.image(4), inputs.timestep, encoder_hidden_states=inputs.text()),
)  # fmt: skip
