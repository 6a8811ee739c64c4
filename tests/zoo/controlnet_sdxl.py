"""ControlNetModel as for SDXL: the downward half of its UNet, beside it."""

from zoo import sdxl
from zoo.specimen import Specimen

_UPWARDS = ("sample_size", "out_channels", "up_block_types")

SPECIMEN = Specimen(
    "ControlNet of SDXL", "ControlNetModel",
    dict(
        {name: value for name, value in sdxl.SPECIMEN.config.items() if name not in _UPWARDS},
        conditioning_embedding_out_channels=(8, 16),
    ),
    lambda model, inputs: model(
        inputs.image(4), inputs.timestep, inputs.text(), inputs.image(3, scale=2, seed=3),
        added_cond_kwargs=sdxl.make_conditions(inputs), return_dict=False,
    ),
    pipelines=r"StableDiffusionXLControlNet.*",
)  # fmt: skip
