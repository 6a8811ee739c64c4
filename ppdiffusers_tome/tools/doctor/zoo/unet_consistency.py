"""UNet2DModel as in consistency models: downsampled by residual blocks, with a class label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, picture

if TYPE_CHECKING:
    import paddle

NUM_CLASSES = 10
SETTINGS: dict[str, Any] = dict(
    sample_size=16, in_channels=3, out_channels=3, block_out_channels=(8, 16, 16), layers_per_block=1,
    down_block_types=("ResnetDownsampleBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"), downsample_type="resnet",
    up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D"), upsample_type="resnet",
    attention_head_dim=4, norm_num_groups=4, attn_norm_num_groups=4, resnet_time_scale_shift="scale_shift",
    num_class_embeds=NUM_CLASSES,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import UNet2DModel

    return built(UNet2DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    labels = paddle.arange(batch, dtype="int64") % NUM_CLASSES
    return model(picture(batch, 3, height, width), timestep, class_labels=labels).sample


SPECIMEN = Specimen("consistency models", "UNet2DModel", build, run, pipelines="ConsistencyModelPipeline")
