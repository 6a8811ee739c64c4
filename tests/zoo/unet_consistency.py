"""UNet2DModel as in consistency models: downsampled by residual blocks, with a class label."""

from zoo.specimen import UNET, Specimen

SPECIMEN = Specimen(
    "consistency models", "UNet2DModel",
    dict(
        UNET, in_channels=3, out_channels=3, block_out_channels=(8, 16, 16),
        down_block_types=("ResnetDownsampleBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"), downsample_type="resnet",
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D"), upsample_type="resnet",
        attention_head_dim=4, attn_norm_num_groups=4, resnet_time_scale_shift="scale_shift", num_class_embeds=10,
    ),
    lambda model, inputs: model(inputs.image(3), inputs.timestep, class_labels=inputs.labels),
    pipelines="ConsistencyModelPipeline",
)  # fmt: skip
