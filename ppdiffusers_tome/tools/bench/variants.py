"""The variants that benchmarks compare. Imports no Paddle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.settings.presets import presets

NONE, PORT, OURS = "none", "port", "ours"
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
    from ppdiffusers_tome.api import remove_tome

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


def _apply_ours(model: Any, **settings: Any) -> None:
    from ppdiffusers_tome.api import apply_tome

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
    **{f"preset-{name}": _make_preset(name) for name in presets()},
}
