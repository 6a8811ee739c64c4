"""DiTLLaMAT2IModel: a text to image diffusion transformer with LLaMA's blocks and rotary positions."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from zoo.dit_llama import BROKEN, promotion_on_any_paddle
from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Specimen, attention_anywhere


@contextlib.contextmanager
def import_module() -> Iterator[ModuleType]:
    """Import its module, which on Paddle 3 needs a name at its old place."""
    from paddle.nn import functional
    from paddle.nn.functional import flash_attention

    name, path = "scaled_dot_product_attention", "ppdiffusers.models.dit_llama_t2i"
    if hasattr(flash_attention, name):
        yield importlib.import_module(path)
        return
    setattr(flash_attention, name, functional.scaled_dot_product_attention)
    try:
        yield importlib.import_module(path)
    finally:
        delattr(flash_attention, name)
        # Whoever asks whether ppdiffusers can import it is to get the same answer as before.
        sys.modules.pop(path, None)


def construct(**config: Any) -> Any:
    with import_module() as module, promotion_on_any_paddle(module):
        model = module.DiTLLaMAT2IModel(**config)
    model.enable_gradient_checkpointing(False)  # on from the start, though only training needs it
    return model


SPECIMEN = Specimen(
    "Large-DiT, text to image", "DiTLLaMAT2IModel",
    dict(
        patch_size=2, in_channels=4, max_seq_len=80, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        multiple_of=16, cap_feat_dim=TEXT_DIM,
    ),
    lambda model, inputs: model(
        inputs.image(4), inputs.timesteps, inputs.text(), inputs.rows([1] * TEXT_TOKENS, dtype="int32")
    ),
    construct=construct, mended=attention_anywhere, broken=BROKEN,
)  # fmt: skip
