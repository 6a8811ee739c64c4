"""UNet2DModel as in DDPM, PNDM, LDM, RePaint and Karras VE."""

from zoo.specimen import UNET, Specimen

SPECIMEN = Specimen(
    "DDPM, LDM without a text, RePaint", "UNet2DModel",
    dict(
        UNET, in_channels=3, out_channels=3, block_out_channels=(8, 16, 16), attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    ),
    lambda model, inputs: model(inputs.image(3), inputs.timestep),
)  # fmt: skip
