"""The families of models that the estimate knows, as they are published. Knows no Paddle."""

from __future__ import annotations

from dataclasses import dataclass

from ppdiffusers_tome.tools.bench.gpu.joint import JointTransformer
from ppdiffusers_tome.tools.bench.gpu.unet import UNet


@dataclass(frozen=True)
class Family:
    """Models of one shape.

    Attributes:
        name: short, for a command line and a file.
        title: for people.
        denoiser: its shape.
        batch: rows of one call that draws one picture; guidance takes two.
        source: where the shape is written; how much text there is, CLIP's and T5's tokens, is the pipeline's default.
        released: whether a release of ppdiffusers on the package index has it; else PaddleMIX's source does.
    """

    name: str
    title: str
    denoiser: UNet | JointTransformer
    batch: int
    source: str
    released: bool = True


SD3_TEXT_TOKENS = 77 + 77  # in ppdiffusers 0.29; T5 has more since SD3.5
_POOLED = 768 + 1280  # channels of both CLIP encoders
FAMILIES = {
    family.name: family
    for family in (
        Family(
            "sd15", "Stable Diffusion 1.5", UNet((320, 640, 1280, 1280), (1, 1, 1, 0), 1, 768), 2,
            "unet/config.json of runwayml/stable-diffusion-v1-5",
        ),
        Family(
            "sdxl", "SDXL", UNet((320, 640, 1280), (0, 2, 10), 10, 2048, embeds_sizes=True), 2,
            "unet/config.json of stabilityai/stable-diffusion-xl-base-1.0",
        ),
        Family(
            "sd3", "SD3 medium", JointTransformer(1536, 64, 24, SD3_TEXT_TOKENS, _POOLED, normed=False), 2,
            "transformer/config.json of stabilityai/stable-diffusion-3-medium-diffusers",
        ),
        Family(
            "sd35-medium", "SD3.5 medium", JointTransformer(1536, 64, 24, 77 + 256, _POOLED, second_attentions=13), 2,
            "transformer/config.json of stabilityai/stable-diffusion-3.5-medium", released=False,
        ),
        Family(
            "sd35-large", "SD3.5 large", JointTransformer(2432, 64, 38, 77 + 256, _POOLED), 2,
            "transformer/config.json of stabilityai/stable-diffusion-3.5-large", released=False,
        ),
        Family(
            "flux", "FLUX.1 dev",
            JointTransformer(3072, 128, 19, 512, 768, single_blocks=38, rotary=True, text_ends=False), 1,
            "transformer/config.json of black-forest-labs/FLUX.1-dev", released=False,
        ),
    )
}  # fmt: skip
SIZES = (512, 1024, 2048)  # height and width in pixels
