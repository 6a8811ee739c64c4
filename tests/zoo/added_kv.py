"""UNet2DConditionModel as in DeepFloyd IF, Kandinsky 2 and unCLIP: one attention for both.

Keys and values of the text are added to those of the image. The finest level has no attention.
"""

from typing import Any

from zoo.specimen import Specimen

# The norm of the text has 32 groups.
CROSS_DIM, TEXT_DIM = 32, 10
# What IF, both Kandinskys and unCLIP share; they embed their texts and images in different ways.
SHARED: dict[str, Any] = dict(
    sample_size=16, block_out_channels=(8, 16), layers_per_block=1, cross_attention_dim=CROSS_DIM,
    down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
    mid_block_type="UNetMidBlock2DSimpleCrossAttn",
    up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"), attention_head_dim=4, norm_num_groups=4,
    resnet_time_scale_shift="scale_shift",
)  # fmt: skip

SPECIMEN = Specimen(
    "DeepFloyd IF, Kandinsky 2, decoder of unCLIP", "UNet2DConditionModel",
    dict(
        SHARED, in_channels=3, out_channels=6, encoder_hid_dim=TEXT_DIM, addition_embed_type="text",
        addition_embed_type_num_heads=2, cross_attention_norm="group_norm", act_fn="gelu",
    ),
    lambda model, inputs: model(inputs.image(3), inputs.timestep, encoder_hidden_states=inputs.text(TEXT_DIM)),
    pipelines=r"IF.*|Kandinsky.*|UnCLIP.*",
)  # fmt: skip
