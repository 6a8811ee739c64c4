"""Kandinsky3UNet: attention on the image, in a block of Kandinsky 3's own."""

from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Specimen

SPECIMEN = Specimen(
    "Kandinsky 3", "Kandinsky3UNet",
    dict(
        in_channels=4, time_embedding_dim=16, groups=4, attention_head_dim=8, layers_per_block=2,
        block_out_channels=(16, 16, 16, 16), cross_attention_dim=16, encoder_hid_dim=TEXT_DIM,
    ),
    lambda model, inputs: model(
        inputs.image(4), inputs.timestep, encoder_hidden_states=inputs.text(),
        encoder_attention_mask=inputs.rows([1] * TEXT_TOKENS),
    ),
    broken="its timestep embedding fails, and its attention has no `heads`, which its processor needs",
)  # fmt: skip
