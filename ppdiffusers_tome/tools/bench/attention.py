"""The ways of computing attention that a benchmark compares; names here, Paddle only when one is set."""

from __future__ import annotations

from typing import Any

from ppdiffusers_tome.errors import UserError

PLAIN, CHUNKED = "plain", "chunked"
_EFFICIENT = {"xformers": "cutlass", "flash": "flash"}  # what Paddle calls them
ATTENTIONS = (PLAIN, CHUNKED, *_EFFICIENT)


def set_attention(unet: Any, name: str) -> None:
    """Have a UNet compute attention in one of the ways of ``ATTENTIONS``.

    Raises:
        UserError: this device or this version cannot.
    """
    import paddle

    from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention

    unet.set_default_attn_processor()
    if name == CHUNKED:
        enable_chunked_attention(unet)
    elif name in _EFFICIENT:
        if not paddle.get_device().startswith("gpu"):
            raise UserError(
                f"--attention {name} needs a GPU: Paddle's {_EFFICIENT[name]} attention has no CPU kernels; use plain "
                "or chunked, or a GPU with paddlepaddle-gpu"
            )
        unet.enable_xformers_memory_efficient_attention(attention_op=_EFFICIENT[name])
