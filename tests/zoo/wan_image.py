"""WanTransformer3DModel: image to video. Its blocks attend to an image's embeddings beside the text's."""

from dataclasses import replace

from zoo import wan

IMAGE_TOKENS, IMAGE_DIM = 257, 10  # ppdiffusers takes so many for the image's

SPECIMEN = replace(
    wan.SPECIMEN, about="Wan 2.1, image to video", pipelines="WanImageToVideoPipeline",
    config={**wan.CONFIG, "image_dim": IMAGE_DIM, "added_kv_proj_dim": 24},
    call=lambda model, inputs: model(
        inputs.image(4, inputs.frames), inputs.timesteps, inputs.text(),
        inputs.normal(IMAGE_TOKENS, IMAGE_DIM, seed=5),
    ),
)  # fmt: skip
