"""CogVideoXTransformer3DModel of 2 billion parameters: positions are added to the tokens."""

from zoo.specimen import (
    GPU_ATTENTION,
    TEXT_DIM,
    TEXT_TOKENS,
    Specimen,
    attention_anywhere,
)  # fmt: skip

# A head has 16 channels, so that 3 axes of positions find place in it.
CONFIG = dict(
    num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
    text_embed_dim=TEXT_DIM, num_layers=2, sample_width=16, sample_height=16, sample_frames=9, patch_size=2,
    max_text_seq_length=TEXT_TOKENS,
)  # fmt: skip

SPECIMEN = Specimen(
    "CogVideoX 2B", "CogVideoXTransformer3DModel", CONFIG,
    lambda model, inputs: model(
        hidden_states=inputs.image(inputs.frames, 4), encoder_hidden_states=inputs.text(),
        timestep=inputs.timesteps, image_rotary_emb=None,
    ),
    mended=attention_anywhere, broken=GPU_ATTENTION, since="0.29.1",
)  # fmt: skip
