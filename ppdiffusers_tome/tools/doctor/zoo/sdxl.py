"""UNet2DConditionModel as in SDXL: no attention at the latent's size, several blocks in a host, sizes as embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CROSS_DIM, TEXT_TOKENS, POOLED_DIM, SIZE_DIM = 12, 5, 6, 4
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16, 16), layers_per_block=1,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), transformer_layers_per_block=(1, 2, 3),
    cross_attention_dim=CROSS_DIM, attention_head_dim=(1, 2, 2), use_linear_projection=True, norm_num_groups=4,
    addition_embed_type="text_time", addition_time_embed_dim=SIZE_DIM,
    projection_class_embeddings_input_dim=POOLED_DIM + 6 * SIZE_DIM,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel

    return built(UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    sizes = paddle.to_tensor([[height, width, 0, 0, height, width]] * batch, dtype="float32")
    added = dict(text_embeds=normal(batch, POOLED_DIM, seed=3), time_ids=sizes)
    text = normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    latent = picture(batch, 4, height, width)
    return model(latent, timestep, encoder_hidden_states=text, added_cond_kwargs=added).sample


SPECIMEN = Specimen("SDXL base and refiner", "UNet2DConditionModel", build, run, pipelines=r"StableDiffusionXL.*")
