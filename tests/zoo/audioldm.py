"""UNet2DConditionModel as in AudioLDM and MusicLDM: oblong spectrograms, the text in the timestep's embedding."""

from zoo.specimen import TEXT_DIM, UNET, Specimen

SPECIMEN = Specimen(
    "AudioLDM, MusicLDM", "UNet2DConditionModel",
    dict(
        UNET, down_block_types=("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2,
        cross_attention_dim=(8, 16), attention_head_dim=2, class_embed_type="simple_projection",
        projection_class_embeddings_input_dim=TEXT_DIM, class_embeddings_concat=True,
    ),
    # Without states of an encoder, both attentions of a block are self-attention.
    lambda model, inputs: model(
        inputs.image(4), inputs.timestep, encoder_hidden_states=None, class_labels=inputs.normal(TEXT_DIM, seed=2)
    ),
    pipelines="AudioLDMPipeline|MusicLDMPipeline",
)  # fmt: skip
