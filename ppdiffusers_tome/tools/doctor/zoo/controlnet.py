"""ControlNetModel as for Stable Diffusion: the downward half of its UNet, beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture
from ppdiffusers_tome.tools.doctor.zoo.unet import CROSS_DIM, TEXT_TOKENS

if TYPE_CHECKING:
    import paddle

SETTINGS: dict[str, Any] = dict(
    in_channels=4, block_out_channels=(8, 16), layers_per_block=1, down_block_types=("CrossAttnDownBlock2D",) * 2,
    conditioning_embedding_out_channels=(8, 16), cross_attention_dim=CROSS_DIM, attention_head_dim=2, norm_num_groups=4,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import ControlNetModel

    return built(ControlNetModel, **SETTINGS)


def flat(residuals: tuple[list[paddle.Tensor], paddle.Tensor]) -> paddle.Tensor:
    """All that a ControlNet adds to its UNet, ``[batch, values]``."""
    import paddle

    down, middle = residuals
    return paddle.concat([residual.flatten(1) for residual in (*down, middle)], axis=1)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """The control picture is that of pixels; here a latent's side is half of it."""
    latent, text = picture(batch, 4, height, width), normal(batch, TEXT_TOKENS, CROSS_DIM, seed=2)
    control = picture(batch, 3, 2 * height, 2 * width, seed=3)
    return flat(model(latent, timestep, text, control, return_dict=False))


SPECIMEN = Specimen("ControlNet", "ControlNetModel", build, run)
