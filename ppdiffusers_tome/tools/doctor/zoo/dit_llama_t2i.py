"""DiTLLaMAT2IModel: a text to image diffusion transformer with LLaMA's blocks and rotary positions."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.doctor.zoo.dit_llama import promotion_on_any_paddle
from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen, attention_anywhere, built, normal, picture

if TYPE_CHECKING:
    import paddle

TEXT_DIM, TEXT_TOKENS = 12, 5
SETTINGS: dict[str, Any] = dict(
    patch_size=2, in_channels=4, max_seq_len=80, num_layers=2, num_attention_heads=2, attention_head_dim=8,
    multiple_of=16, cap_feat_dim=TEXT_DIM,
)  # fmt: skip


@contextlib.contextmanager
def imported() -> Iterator[ModuleType]:
    """Its module, which on Paddle 3 imports a name from where it is no more; it is then forgotten again after use."""
    from paddle.nn import functional
    from paddle.nn.functional import flash_attention

    name, path = "scaled_dot_product_attention", "ppdiffusers.models.dit_llama_t2i"
    if hasattr(flash_attention, name):
        yield importlib.import_module(path)
        return
    flash_attention.scaled_dot_product_attention = functional.scaled_dot_product_attention
    try:
        yield importlib.import_module(path)
    finally:
        del flash_attention.scaled_dot_product_attention
        # Whoever asks whether ppdiffusers can import it is to get the same answer as before.
        sys.modules.pop(path, None)


def build() -> Any:
    with imported() as module, promotion_on_any_paddle(module):
        model = built(module.DiTLLaMAT2IModel, **SETTINGS)
    model.enable_gradient_checkpointing(False)  # on from the start, though only training needs it
    return model


def run(model: Any, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> paddle.Tensor:
    import paddle

    steps, text = paddle.full([batch], timestep, dtype="float32"), normal(batch, TEXT_TOKENS, TEXT_DIM, seed=2)
    with attention_anywhere():
        return model(
            picture(batch, 4, height, width), steps, text, paddle.ones([batch, TEXT_TOKENS], dtype="int32")
        ).sample


SPECIMEN = Specimen(
    "Large-DiT, text to image",
    "DiTLLaMAT2IModel",
    build,
    run,
    broken="ppdiffusers cannot compute its rotary positions on Paddle 3, nor its attention without a GPU",
)
