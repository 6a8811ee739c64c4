"""WanTransformer3DModel: text to video."""

from zoo.specimen import AVX512_NORM, TEXT_DIM, Specimen, norms_anywhere

CONFIG = dict(
    patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
    text_dim=TEXT_DIM, freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=64,
)  # fmt: skip

SPECIMEN = Specimen(
    "Wan 2.1, text to video", "WanTransformer3DModel", CONFIG,
    lambda model, inputs: model(inputs.image(4, inputs.frames), inputs.timesteps, inputs.text()),
    mended=norms_anywhere, broken=AVX512_NORM, since="0.29.1",
)  # fmt: skip
