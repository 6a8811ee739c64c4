"""Kandinsky3UNet: attention on the picture, in a block of Kandinsky 3's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM, TEXT_TOKENS = 12, 5
SETTINGS: dict[str, Any] = dict(
    in_channels=4, time_embedding_dim=16, groups=4, attention_head_dim=8, layers_per_block=2,
    block_out_channels=(16, 16, 16, 16), cross_attention_dim=16, encoder_hid_dim=TEXT_DIM,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import Kandinsky3UNet

    return built(Kandinsky3UNet, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    text = normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2)
    mask = paddle.ones([batch, TEXT_TOKENS])
    latent = picture(batch, 4, height, width)
    return model(latent, timestep, encoder_hidden_states=text, encoder_attention_mask=mask).sample


SPECIMEN = Specimen(
    "Kandinsky 3",
    "Kandinsky3UNet",
    build,
    run,
    broken="its timestep embedding fails, and its attention has no `heads`, which its processor asks for",
)
