"""UniDiffuserModel: timesteps, text and image embedding are tokens before those of the latent."""

from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Specimen

IMAGE_DIM = 10

SPECIMEN = Specimen(
    "UniDiffuser", "UniDiffuserModel",
    dict(
        text_dim=TEXT_DIM, clip_img_dim=IMAGE_DIM, num_text_tokens=TEXT_TOKENS, num_attention_heads=2,
        attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=16, patch_size=2,
        activation_fn="gelu", norm_type="layer_norm", block_type="unidiffuser", use_data_type_embedding=True,
    ),
    lambda model, inputs: model(
        latent_image_embeds=inputs.image(4), image_embeds=inputs.normal(1, IMAGE_DIM, seed=2),
        prompt_embeds=inputs.text(seed=3), timestep_img=inputs.timesteps, timestep_text=inputs.timesteps,
    ),
    size=(16, 16),  # its positions are learned, and it returns a square
)  # fmt: skip
