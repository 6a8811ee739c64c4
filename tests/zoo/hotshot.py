"""Hotshot-XL's UNet3DConditionModel: SDXL's blocks on every frame.

Its attention over frames normalises 32 groups of channels.
"""

from __future__ import annotations

from typing import Any

from zoo.specimen import TEXT_DIM, UNET, Inputs, Specimen

POOLED_DIM = 10


def call(model: Any, inputs: Inputs) -> Any:
    size = [8 * inputs.height, 8 * inputs.width]
    added = dict(text_embeds=inputs.normal(POOLED_DIM, seed=3), time_ids=inputs.rows([*size, 0, 0, *size]))
    video, text = inputs.image(4, inputs.frames), inputs.text()
    return model(video, inputs.timesteps[:1], encoder_hidden_states=text, added_cond_kwargs=added)


SPECIMEN = Specimen(
    "Hotshot-XL", "UNet3DConditionModel",
    dict(
        UNET, block_out_channels=(32, 32), down_block_types=("DownBlock3D", "CrossAttnDownBlock3D"),
        up_block_types=("CrossAttnUpBlock3D", "UpBlock3D"), cross_attention_dim=TEXT_DIM, attention_head_dim=2,
        norm_num_groups=8, use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=6 * 4 + POOLED_DIM,
    ),
    call, module="ppdiffusers.models.hotshot_xl.unet", pipelines="HotshotXL.*Pipeline",
    broken="with Paddle 2.6 ppdiffusers fails on the timesteps that schedulers give it",
)  # fmt: skip
