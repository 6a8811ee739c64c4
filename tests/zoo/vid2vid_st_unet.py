"""Vid2VidSTUNet: ModelScope's video to video, whose downsampler pads the height."""

from zoo import st_unet
from zoo.specimen import GPU_ATTENTION, Specimen, attention_anywhere

SPECIMEN = Specimen(
    "ModelScope video to video", "Vid2VidSTUNet",
    {name: value for name, value in st_unet.SPECIMEN.config.items() if name != "num_tokens"},
    lambda model, inputs: model(
        inputs.image(4, inputs.frames), inputs.timesteps, y=inputs.text(st_unet.CONTEXT_DIM)
    ),
    mended=attention_anywhere, broken=GPU_ATTENTION, pads_grid=True,
)  # fmt: skip
