"""UNet1DModel: Dance Diffusion, on the waveform of a sound."""

from zoo.specimen import Specimen

SPECIMEN = Specimen(
    "Dance Diffusion", "UNet1DModel",
    dict(sample_size=64, extra_in_channels=16, block_out_channels=(32, 32, 32), norm_num_groups=4),
    # The sound has as many samples as an image of that height and width has pixels.
    lambda model, inputs: model(inputs.normal(2, inputs.height * inputs.width, seed=0), inputs.timestep),
)  # fmt: skip
