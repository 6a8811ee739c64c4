"""WuerstchenDiffNeXt: patches of two, attention from the second level on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM, TEXT_TOKENS, EMBEDDING_CHANNELS = 12, 5, 4
SETTINGS: dict[str, Any] = dict(
    c_in=4, c_out=4, c_r=8, patch_size=2, c_cond=TEXT_DIM, c_hidden=[8, 16], nhead=[-1, 2], blocks=[1, 1],
    level_config=["CT", "CTA"], inject_effnet=[False, True], effnet_embd=EMBEDDING_CHANNELS, clip_embd=TEXT_DIM,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers.pipelines.wuerstchen import WuerstchenDiffNeXt

    return built(WuerstchenDiffNeXt, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """``timestep``: thousandths of the noise that is left, which is what the model is told."""
    import paddle

    ratio, text = paddle.full([batch], timestep / 1000), normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2)
    embedding = normal(batch, EMBEDDING_CHANNELS, 3, 3, seed=3)
    return model(picture(batch, 4, height, width), r=ratio, effnet=embedding, clip=text)


SPECIMEN = Specimen("Wuerstchen, decoder", "WuerstchenDiffNeXt", build, run)
