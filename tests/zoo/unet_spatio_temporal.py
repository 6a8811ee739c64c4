"""UNetSpatioTemporalConditionModel: Stable Video Diffusion. Its normalisation needs a multiple of 32 channels."""

from zoo.specimen import FRAMES, TEXT_DIM, Specimen

SPECIMEN = Specimen(
    "Stable Video Diffusion", "UNetSpatioTemporalConditionModel",
    dict(
        sample_size=16, in_channels=8, out_channels=4, block_out_channels=(32, 32), layers_per_block=1,
        down_block_types=("CrossAttnDownBlockSpatioTemporal",) * 2, num_attention_heads=2, num_frames=FRAMES,
        up_block_types=("CrossAttnUpBlockSpatioTemporal",) * 2, cross_attention_dim=TEXT_DIM,
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=24,
    ),
    lambda model, inputs: model(
        inputs.image(inputs.frames, 8), inputs.timestep, encoder_hidden_states=inputs.normal(1, TEXT_DIM, seed=2),
        # Frames a second, amount of motion, and noise added to the first image.
        added_time_ids=inputs.rows([6, 127, 0.02]),
    ),
)  # fmt: skip
