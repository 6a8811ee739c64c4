"""ControlNetModel as for Stable Diffusion: the downward half of its UNet, beside it."""

from zoo.specimen import TEXT_DIM, Specimen

SPECIMEN = Specimen(
    "ControlNet", "ControlNetModel",
    dict(
        in_channels=4, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=2,
        down_block_types=("CrossAttnDownBlock2D",) * 2, conditioning_embedding_out_channels=(8, 16),
        cross_attention_dim=TEXT_DIM,
    ),
    # The control image is that of pixels; here a latent's side is half of it.
    lambda model, inputs: model(
        inputs.image(4), inputs.timestep, inputs.text(), inputs.image(3, scale=2, seed=3), return_dict=False
    ),
)  # fmt: skip
