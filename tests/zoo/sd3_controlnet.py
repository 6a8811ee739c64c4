"""SD3ControlNetModel: the first blocks of a Stable Diffusion 3, beside it."""

from dataclasses import replace

from zoo import sd3

SPECIMEN = replace(
    sd3.SPECIMEN, about="ControlNet of Stable Diffusion 3", model_class="SD3ControlNetModel", since="0.29.1",
    call=lambda model, inputs: model(
        hidden_states=inputs.image(4), controlnet_cond=inputs.image(4, seed=4),
        encoder_hidden_states=inputs.text(), pooled_projections=inputs.normal(sd3.POOLED_DIM, seed=3),
        timestep=inputs.timesteps, return_dict=False,
    ),
)  # fmt: skip
