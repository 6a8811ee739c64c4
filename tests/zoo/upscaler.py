"""UNet2DConditionModel as in the x4 upscaler: finer levels attend to text only."""

from zoo.specimen import TEXT_DIM, Specimen

SPECIMEN = Specimen(
    "the x4 upscaler", "UNet2DConditionModel",
    dict(
        sample_size=32, in_channels=7, out_channels=4, block_out_channels=(8, 8, 16, 16), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        only_cross_attention=(True, True, True, False), cross_attention_dim=TEXT_DIM, attention_head_dim=4,
        use_linear_projection=True, norm_num_groups=4, num_class_embeds=1000,
    ),
    # Twice the size asked for: the only self-attention is at level 8, where 16x16 would be a single cell.
    lambda model, inputs: model(
        inputs.image(7, scale=2), inputs.timestep, encoder_hidden_states=inputs.text(),
        class_labels=inputs.rows(20, dtype="int64"),  # a noise level
    ),
    pipelines="StableDiffusionUpscalePipeline",
)  # fmt: skip
