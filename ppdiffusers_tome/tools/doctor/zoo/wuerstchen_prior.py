"""WuerstchenPrior: attention on a small latent picture, with the text's tokens behind the picture's as keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM, TEXT_TOKENS = 12, 5
SETTINGS: dict[str, Any] = dict(c_in=4, c=16, c_cond=TEXT_DIM, c_r=8, depth=2, nhead=2)


def build() -> Any:
    from ppdiffusers.pipelines.wuerstchen import WuerstchenPrior

    return built(WuerstchenPrior, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """``timestep``: thousandths of the noise that is left, which is what the model is told."""
    import paddle

    ratio, text = paddle.full([batch], timestep / 1000), normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2)
    return model(picture(batch, 4, height, width), r=ratio, c=text)


SPECIMEN = Specimen("Wuerstchen, prior", "WuerstchenPrior", build, run)
