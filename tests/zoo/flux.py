"""FluxTransformer2DModel: dual blocks for image and text, then single blocks for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo.specimen import (
    FLASH_ATTENTION,
    TEXT_DIM,
    TEXT_TOKENS,
    Inputs,
    Specimen,
    kernels_anywhere,
)  # fmt: skip

if TYPE_CHECKING:
    import paddle

POOLED_DIM = 10


def ids(height: int, width: int) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the positions of the image's tokens and of the text's, which are 0."""
    import paddle

    rows = paddle.arange(height, dtype="float32").unsqueeze(1).expand([height, width])
    columns = paddle.arange(width, dtype="float32").unsqueeze(0).expand([height, width])
    of_image = paddle.stack([paddle.zeros_like(rows), rows, columns], axis=-1).reshape([-1, 3])
    return of_image, paddle.zeros([TEXT_TOKENS, 3])


def arguments(inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of the model and its ControlNet."""
    import paddle

    height, width = inputs.height // 2, inputs.width // 2
    latents = inputs.image(2)[:, :, : 2 * height, : 2 * width]
    packed = latents.reshape([inputs.batch, 2, height, 2, width, 2]).transpose([0, 2, 4, 1, 3, 5])
    img_ids, txt_ids = ids(height, width)
    return dict(
        hidden_states=packed.reshape([inputs.batch, height * width, 8]), encoder_hidden_states=inputs.text(),
        pooled_projections=inputs.normal(POOLED_DIM, seed=3), timestep=inputs.timesteps / 1000,
        guidance=paddle.full([inputs.batch], 3.5), img_ids=img_ids, txt_ids=txt_ids,
    )  # fmt: skip


SPECIMEN = Specimen(
    "FLUX, also its control, fill and inpainting", "FluxTransformer2DModel",
    dict(
        patch_size=1, in_channels=8, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT_DIM, pooled_projection_dim=POOLED_DIM, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
    ),
    lambda model, inputs: model(**arguments(inputs)), mended=kernels_anywhere, broken=FLASH_ATTENTION, since="0.29.1",
)  # fmt: skip
