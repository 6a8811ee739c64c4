"""UNet2DConditionModel as in SDXL: no attention at the latent's size, sizes as embeddings."""

from __future__ import annotations

from typing import Any

from zoo.specimen import TEXT_DIM, UNET, Inputs, Specimen

POOLED_DIM, SIZE_DIM = 6, 4


def make_conditions(inputs: Inputs) -> dict[str, Any]:
    """The conditions beside the text: its pooled embedding, and sizes."""
    size = [inputs.height, inputs.width]
    return dict(text_embeds=inputs.normal(POOLED_DIM, seed=3), time_ids=inputs.rows([*size, 0, 0, *size]))


SPECIMEN = Specimen(
    "SDXL base and refiner", "UNet2DConditionModel",
    dict(
        UNET, block_out_channels=(8, 16, 16), transformer_layers_per_block=(1, 2, 3), attention_head_dim=(1, 2, 2),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=TEXT_DIM,
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=SIZE_DIM,
        projection_class_embeddings_input_dim=POOLED_DIM + 6 * SIZE_DIM,
    ),
    lambda model, inputs: model(
        inputs.image(4), inputs.timestep, encoder_hidden_states=inputs.text(),
        added_cond_kwargs=make_conditions(inputs),
    ),
    pipelines=r"StableDiffusionXL.*",
)  # fmt: skip
