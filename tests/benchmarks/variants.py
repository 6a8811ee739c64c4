"""The variants that benchmarks compare.

Imports no Paddle, so that a process is set up before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.presets import PRESETS

if TYPE_CHECKING:
    import paddle

NONE, PORT, OURS, FREE = "none", "port", "ours", "free"
TILE = 16


@dataclass(frozen=True)
class Variant:
    """One of the variants that are compared.

    Attributes:
        meaning: half a sentence for the reader of a table.
        apply: applies it to an unmerged model at a ratio; may return hooks to remove afterwards.
        takes_ratio: whether the ratio matters.
        needs_unet: whether other models cannot have it.
    """

    meaning: str
    apply: Callable[[Any, float], Any]
    takes_ratio: bool = True
    needs_unet: bool = False


@contextmanager
def apply_variant(model: Any, variant: Variant, ratio: float) -> Iterator[None]:
    """Apply a variant to an unmerged model inside a ``with`` statement."""
    from ppdiffusers_tome import remove_tome

    hooks = variant.apply(model, ratio)
    try:
        yield
    finally:
        remove_tome(model)  # which removes the port, too
        for hook in hooks or ():
            hook.remove()


def apply_port(model_or_pipe: Any, ratio: float, max_downsample: int | None = None) -> None:
    """Apply ppdiffusers' own port of tomesd; ``remove_tome`` removes it.

    Args:
        model_or_pipe: a UNet, or a pipeline that has one.
        ratio: fraction of the tokens to merge.
        max_downsample: 1, 2, 4, 8, or None for the finest level that has attention.
    """
    from ppdiffusers_tome.install import install, uninstall
    from ppdiffusers_tome.patching.blocks import find_blocks

    level = max_downsample or min(block.level for block in find_blocks(getattr(model_or_pipe, "unet", model_or_pipe)))
    uninstall()  # our methods take the place of the port's
    try:
        model_or_pipe.apply_tome(ratio=ratio, max_downsample=level)
    finally:
        install()


def drop_tokens(model: Any, ratio: float) -> list[Any]:
    """Drop tokens before self-attention by slicing, and return zeros instead; return the hooks.

    The zeros are made once per shape and not copied, so nothing that matches, merges and unmerges can be faster.
    """
    import paddle

    from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
    from ppdiffusers_tome.patching.blocks import find_blocks
    from ppdiffusers_tome.patching.layers import find_layer

    zeros: dict[tuple, paddle.Tensor] = {}

    def drop(layer: Any, inputs: tuple) -> tuple:
        layer.num_tokens_before = inputs[0].shape[1]
        return (inputs[0][:, : layer.num_tokens_before - int(layer.num_tokens_before * ratio)], *inputs[1:])

    def restore(layer: Any, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor:
        shape = (output.shape[0], layer.__dict__.pop("num_tokens_before"), output.shape[2])
        if (shape, output.dtype) not in zeros:
            zeros[shape, output.dtype] = paddle.zeros(shape, dtype=output.dtype)
        return zeros[shape, output.dtype]

    hooks, blocks = [], find_blocks(model)
    for block in blocks:
        if block.level == min(each.level for each in blocks):
            layer = find_layer(block.layer, block.adapter.points[ATTENTION][0].layer)
            hooks += [layer.register_forward_pre_hook(drop), layer.register_forward_post_hook(restore)]
    return hooks


def _apply_ours(model: Any, **settings: Any) -> None:
    from ppdiffusers_tome import apply_tome

    apply_tome(model, **settings)


def _make_preset(name: str) -> Variant:
    return Variant(f"the preset {name}", lambda model, ratio: _apply_ours(model, config=name), takes_ratio=False)


VARIANTS: dict[str, Variant] = {
    NONE: Variant("the model without token merging", lambda model, ratio: None, takes_ratio=False),
    PORT: Variant("ppdiffusers' own port of tomesd", apply_port, needs_unet=True),
    OURS: Variant("this package with its defaults", lambda model, ratio: _apply_ours(model, ratio=ratio)),
    "ours-tile": Variant(
        f"this package with tile={TILE}", lambda model, ratio: _apply_ours(model, ratio=ratio, tile=TILE)
    ),
    **{f"preset-{name}": _make_preset(name) for name in PRESETS},
    FREE: Variant(
        "the limit: as many tokens dropped by slicing, without matching or unmerging", drop_tokens, needs_unet=True
    ),
}
