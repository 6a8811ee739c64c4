"""WuerstchenDiffNeXt: patches of two, attention from the second level on."""

from zoo.specimen import TEXT_DIM, Specimen

EMBEDDING_CHANNELS = 4

SPECIMEN = Specimen(
    "Wuerstchen, decoder", "WuerstchenDiffNeXt",
    dict(
        c_in=4, c_out=4, c_r=8, patch_size=2, c_cond=TEXT_DIM, c_hidden=[8, 16], nhead=[-1, 2], blocks=[1, 1],
        level_config=["CT", "CTA"], inject_effnet=[False, True], effnet_embd=EMBEDDING_CHANNELS, clip_embd=TEXT_DIM,
    ),
    # Its time is the share of noise that is left.
    lambda model, inputs: model(
        inputs.image(4), r=inputs.timesteps / 1000, effnet=inputs.normal(EMBEDDING_CHANNELS, 3, 3, seed=3),
        clip=inputs.text(),
    ),
    module="ppdiffusers.pipelines.wuerstchen", scheduler="DDPMWuerstchenScheduler",
)  # fmt: skip
