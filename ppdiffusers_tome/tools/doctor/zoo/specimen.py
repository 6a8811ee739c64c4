"""A specimen: a tiny model of a class that pipelines of ppdiffusers denoise with, and how they call it."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.attaching.refused import refusal
from ppdiffusers_tome.tools.measuring.random_state import untouched_random_state

if TYPE_CHECKING:
    import paddle


@dataclass(frozen=True)
class Specimen:
    """A tiny real model with random weights.

    Attributes:
        name: of its file.
        about: which models look like it, for tables: ``Stable Diffusion 1 and 2``.
        model_class: the class, as ppdiffusers calls it.
        build: makes one in evaluation mode, its weights the same every time; moves no global generator.
        run: calls it as its pipelines do, ``(model, batch=2, height=16, width=16, timestep=500)``; sizes are the
            latent's. Returns what it predicts, as one tensor.
        pipelines: a regular expression for names of pipelines whose denoiser of ``model_class`` looks like this one;
            "" for the usual look of the class.
        broken: where ppdiffusers itself cannot run it as it is, for tables; ``build`` and ``run`` mend what is needed.
        size: height and width of the latent, where learned positions allow no other number of tokens.
        refused_block: the class in ``REFUSED`` of the blocks that it has instead of any that merge.
    """

    about: str
    model_class: str
    build: Callable[[], Any]
    run: Callable[..., paddle.Tensor]
    pipelines: str = ""
    broken: str = ""
    size: tuple[int, int] | None = None
    refused_block: str = ""
    name: str = ""

    @property
    def reason(self) -> str | None:
        """Why nothing merges in it; None where something does."""
        return refusal(self.refused_block or self.model_class)


def built(cls: type, **settings: Any) -> Any:
    """A model in evaluation mode whose weights depend on nothing but their names."""
    import numpy as np
    import paddle

    with untouched_random_state():
        model = cls(**settings)
        for name, parameter in model.named_parameters():
            draw = np.asarray(np.random.default_rng(zlib.crc32(name.encode())).standard_normal(parameter.shape))
            if len(parameter.shape) <= 1:
                draw = 0.1 * draw + (name.endswith("weight") and "norm" in name)
            else:
                draw = draw / np.sqrt(np.prod(parameter.shape) / max(parameter.shape[:2]))
            parameter.set_value(paddle.to_tensor(draw.astype(np.float32)))
    model.eval()
    return model


def normal(*shape: int, seed: int = 0) -> paddle.Tensor:
    """Normal numbers, float32, without any global generator."""
    import numpy as np
    import paddle

    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def picture(*shape: int, seed: int = 0) -> paddle.Tensor:
    """``[..., height, width]`` float32 in which neighbours resemble each other, as in a real latent."""
    height, width = shape[-2:]
    coarse = normal(*shape[:-2], height // 2 + 1, width // 2 + 1, seed=seed)
    fine = coarse.repeat_interleave(2, axis=-2).repeat_interleave(2, axis=-1)[..., :height, :width]
    return fine + 0.3 * normal(*shape, seed=seed + 1)


# Of models whose attention is ``attention_anywhere``.
GPU_ATTENTION = "on a GPU only, as ppdiffusers defines the attention it calls nowhere else; tested with a plain one"


@contextlib.contextmanager
def attention_anywhere() -> Iterator[None]:
    """ppdiffusers gives Paddle ``scaled_dot_product_attention_`` only where there is a GPU; here it is everywhere."""
    import paddle.nn.functional as F

    if hasattr(F, "scaled_dot_product_attention_"):
        yield
        return
    F.scaled_dot_product_attention_ = _attention
    try:
        yield
    finally:
        del F.scaled_dot_product_attention_


def _attention(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, attn_mask: paddle.Tensor | None = None, **_: Any
) -> paddle.Tensor:
    """Plain attention on ``[batch, tokens, heads, channels]``, without dropout, as these models call it."""
    import paddle
    import paddle.nn.functional as F

    query, key, value = (x.transpose([0, 2, 1, 3]) for x in (query, key, value))
    scores = paddle.matmul(query * (1 / math.sqrt(query.shape[-1])), key, transpose_y=True)
    if attn_mask is not None:
        scores = scores + attn_mask.astype(scores.dtype)
    return paddle.matmul(F.softmax(scores, axis=-1), value).transpose([0, 2, 1, 3])
