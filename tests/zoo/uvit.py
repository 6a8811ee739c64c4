"""UViTT2IModel: the timestep and the text are tokens before the image's."""

from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Specimen

SPECIMEN = Specimen(
    "U-ViT, text to image", "UViTT2IModel",
    dict(
        sample_size=16, in_channels=4, out_channels=4, patch_size=2, num_layers=2, num_attention_heads=2,
        attention_head_dim=8, clip_dim=TEXT_DIM, num_text_tokens=TEXT_TOKENS,
    ),
    lambda model, inputs: model(inputs.image(4), inputs.timesteps[:1], inputs.text()),
    module="ppdiffusers.models.uvit_t2i",
    size=(16, 16),  # its positions are learned, and it returns a square
)  # fmt: skip
