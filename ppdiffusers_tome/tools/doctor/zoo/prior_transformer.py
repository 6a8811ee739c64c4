"""PriorTransformer: the unCLIP, Kandinsky and Shap-E priors turn a text embedding into an image's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, built, normal

if TYPE_CHECKING:
    import paddle

EMBEDDING_DIM, TEXT_TOKENS = 12, 5
SETTINGS: dict[str, Any] = dict(
    num_attention_heads=2, attention_head_dim=8, num_layers=2, embedding_dim=EMBEDDING_DIM,
    num_embeddings=TEXT_TOKENS, additional_embeddings=4,
)  # fmt: skip


def build() -> Any:
    from ppdiffusers import PriorTransformer

    return built(PriorTransformer, **SETTINGS)


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    """There is no picture, so ``height`` and ``width`` say nothing."""
    embedding, pooled = normal(batch, EMBEDDING_DIM), normal(batch, EMBEDDING_DIM, seed=1)
    text = normal(batch, TEXT_TOKENS, EMBEDDING_DIM, seed=2)
    return model(
        embedding, timestep=timestep, proj_embedding=pooled, encoder_hidden_states=text
    ).predicted_image_embedding


SPECIMEN = Specimen("Priors of unCLIP, Kandinsky and Shap-E", "PriorTransformer", build, run)
