"""UNet2DConditionModel as in DeepFloyd IF, Kandinsky 2 and the decoder of unCLIP: one attention for picture and text.

Keys and values of the text are added to those of the picture. The finest level has no attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

# The norm of the text has 32 groups.
CROSS_DIM, TEXT_TOKENS, TEXT_DIM = 32, 5, 10
# What IF, both Kandinskys and unCLIP share; they embed their texts and pictures in different ways.
SHARED: dict[str, Any] = dict(
    sample_size=16, block_out_channels=(8, 16), layers_per_block=1, cross_attention_dim=CROSS_DIM,
    down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
    mid_block_type="UNetMidBlock2DSimpleCrossAttn",
    up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"), attention_head_dim=4, norm_num_groups=4,
    resnet_time_scale_shift="scale_shift",
)  # fmt: skip
SETTINGS: dict[str, Any] = dict(
    **SHARED, in_channels=3, out_channels=6, encoder_hid_dim=TEXT_DIM, addition_embed_type="text",
    addition_embed_type_num_heads=2, cross_attention_norm="group_norm", act_fn="gelu",
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DConditionModel

    return built(UNet2DConditionModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    text = normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2)
    return model(picture(batch, 3, height, width), timestep, encoder_hidden_states=text).sample


SPECIMEN = Specimen(
    "DeepFloyd IF, Kandinsky 2, decoder of unCLIP", "UNet2DConditionModel", build, run,
    pipelines=r"IF.*|Kandinsky.*|UnCLIP.*",
)  # fmt: skip
