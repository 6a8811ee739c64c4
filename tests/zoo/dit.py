"""Transformer2DModel as in DiT: patches of two, the timestep embedded in every block's norm."""

from zoo.specimen import Specimen

SPECIMEN = Specimen(
    "DiT", "Transformer2DModel",
    dict(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, patch_size=2,
        sample_size=16, norm_type="ada_norm_zero", num_embeds_ada_norm=10, activation_fn="gelu-approximate",
        attention_bias=True, norm_elementwise_affine=False,
    ),
    lambda model, inputs: model(inputs.image(4), timestep=inputs.timesteps, class_labels=inputs.labels),
)  # fmt: skip
