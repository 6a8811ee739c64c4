"""The ways of computing attention that a benchmark compares; names here, Paddle only when one is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppdiffusers_tome.errors import UserError

PLAIN, CHUNKED = "plain", "chunked"


def set_attention(unet: Any, name: str) -> None:
    """Have a UNet compute attention in one of the ways of ``ATTENTIONS``.

    Raises:
        UserError: this device or this version cannot.
    """
    ATTENTIONS[name](unet)


def _set_plain(unet: Any) -> None:
    unet.set_default_attn_processor()


def _set_chunked(unet: Any) -> None:
    from ppdiffusers_tome.chunked_attention import enable_chunked_attention

    unet.set_default_attn_processor()
    enable_chunked_attention(unet)


def _set_efficient(option: str, operator: str) -> Callable[[Any], None]:
    def set_it(unet: Any) -> None:
        import paddle

        if not paddle.get_device().startswith("gpu"):
            raise UserError(
                f"--attention {option} needs a GPU: Paddle's {operator} attention has no CPU kernels; use plain or "
                "chunked, or a GPU with paddlepaddle-gpu"
            )
        unet.enable_xformers_memory_efficient_attention(attention_op=operator)

    return set_it


ATTENTIONS: dict[str, Callable[[Any], None]] = {
    PLAIN: _set_plain,
    CHUNKED: _set_chunked,
    "xformers": _set_efficient("xformers", "cutlass"),
    "flash": _set_efficient("flash", "flash"),
}
