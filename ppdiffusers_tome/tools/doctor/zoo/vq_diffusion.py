"""Transformer2DModel as in VQ-Diffusion: its latent is class numbers of a square of fixed size, one token each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal, picture

if TYPE_CHECKING:
    import paddle

CLASSES, SIDE, TEXT_DIM, TEXT_TOKENS = 12, 16, 12, 5
SETTINGS: dict[str, Any] = dict(
    num_vector_embeds=CLASSES, sample_size=SIDE, num_attention_heads=2, attention_head_dim=8, num_layers=2,
    cross_attention_dim=TEXT_DIM, norm_type="ada_norm", num_embeds_ada_norm=1000, activation_fn="geglu-approximate",
    attention_bias=True,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import Transformer2DModel

    return built(Transformer2DModel, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """``height`` and ``width`` are not heeded: the model's own are fixed by its learned positions."""
    import paddle

    drawn = picture(batch, model.height, model.width).flatten(1) * 3 + CLASSES // 2
    numbers = drawn.clip(0, CLASSES - 1).astype("int64")
    text = normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2)
    return model(numbers, encoder_hidden_states=text, timestep=paddle.to_tensor(int(timestep))).sample


SPECIMEN = Specimen("VQ-Diffusion", "Transformer2DModel", build, run, pipelines="VQDiffusionPipeline", size=(16, 16))
