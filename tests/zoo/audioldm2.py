"""AudioLDM2UNet2DConditionModel: three transformers a layer, for the sound itself and for two texts."""

from zoo.specimen import TEXT_DIM, UNET, Specimen

GENERATED_DIM = 10

SPECIMEN = Specimen(
    "AudioLDM 2", "AudioLDM2UNet2DConditionModel",
    dict(
        UNET, down_block_types=("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2,
        cross_attention_dim=((None, GENERATED_DIM, TEXT_DIM),) * 2, attention_head_dim=2,
    ),
    lambda model, inputs: model(
        inputs.image(4), inputs.timestep, encoder_hidden_states=inputs.normal(4, GENERATED_DIM, seed=2),
        encoder_hidden_states_1=inputs.text(seed=3),
    ),
    module="ppdiffusers.pipelines.audioldm2",
)  # fmt: skip
