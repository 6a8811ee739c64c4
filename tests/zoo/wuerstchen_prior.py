"""WuerstchenPrior: attention on a small latent image, with the text's keys behind."""

from zoo.specimen import TEXT_DIM, Specimen

SPECIMEN = Specimen(
    "Wuerstchen, prior", "WuerstchenPrior", dict(c_in=4, c=16, c_cond=TEXT_DIM, c_r=8, depth=2, nhead=2),
    # Its time is the share of noise that is left.
    lambda model, inputs: model(inputs.image(4), r=inputs.timesteps / 1000, c=inputs.text()),
    module="ppdiffusers.pipelines.wuerstchen", scheduler="DDPMWuerstchenScheduler",
)  # fmt: skip
