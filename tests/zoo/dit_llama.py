"""DiTLLaMA2DModel: a class-conditional diffusion transformer with LLaMA's blocks and rotary positions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from zoo.specimen import Specimen, attention_anywhere

BROKEN = "ppdiffusers cannot compute its rotary positions on Paddle 3, nor its attention without a GPU"


@contextlib.contextmanager
def promotion_on_any_paddle(module: Any) -> Iterator[None]:
    """Replace ``TypePromote``, which reads names of types that Paddle 3 spells otherwise."""
    promote = module.TypePromote
    module.TypePromote = lambda x, y: (x.astype("float64"), y.astype("float64"))
    try:
        yield
    finally:
        module.TypePromote = promote


def construct(**config: Any) -> Any:
    from ppdiffusers.models import dit_llama

    with promotion_on_any_paddle(dit_llama):
        model = dit_llama.DiTLLaMA2DModel(**config)
    model.enable_gradient_checkpointing(False)  # on from the start, though only training needs it
    return model


SPECIMEN = Specimen(
    "Large-DiT, class to image", "DiTLLaMA2DModel",
    dict(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        multiple_of=16, num_classes=10,
    ),
    lambda model, inputs: model(inputs.image(4), timestep=inputs.timesteps, class_labels=inputs.labels),
    construct=construct, mended=attention_anywhere, broken=BROKEN,
)  # fmt: skip
