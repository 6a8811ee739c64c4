"""Transformer2DModel as in DiT: patches of two, the timestep embedded in every block's norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, picture

if TYPE_CHECKING:
    import paddle


SETTINGS: dict[str, Any] = dict(
    num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, patch_size=2,
    sample_size=16, norm_type="ada_norm_zero", num_embeds_ada_norm=10, activation_fn="gelu-approximate",
    attention_bias=True, norm_elementwise_affine=False,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import Transformer2DModel

    return built(Transformer2DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    steps, labels = paddle.full([batch], timestep, dtype="float32"), paddle.arange(batch, dtype="int64")
    return model(picture(batch, 4, height, width), timestep=steps, class_labels=labels).sample


SPECIMEN = Specimen("DiT", "Transformer2DModel", build, run)
