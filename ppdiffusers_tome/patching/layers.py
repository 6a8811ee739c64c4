"""Layers by path and class, and their levels in a UNet."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.patching.adapters.adapter import UNetParts


def find_layer(layer: Layer, path: str) -> Any:
    """Return the sublayer at a dotted path, "" for itself, or None."""
    found: Any = layer
    for name in filter(None, path.split(".")):
        found = getattr(found, name, None)
    return found


def is_a(value: object, *class_names: str) -> bool:
    """Return whether an object's classes have one of these names."""
    return not list_class_names(type(value)).isdisjoint(class_names)  # type: ignore[arg-type]


# Mypy takes classes for unhashable, so calls of this need a comment for it.
@lru_cache(maxsize=1024)
def list_class_names(layer_class: type) -> frozenset[str]:
    """List the names of a class and of those that it inherits from."""
    return frozenset(cls.__name__ for cls in layer_class.__mro__)


def find_level(model: Layer, path: str, unets: Sequence[UNetParts]) -> int:
    """Return a layer's level in a UNet; 1 outside of UNets.

    It is counted from the downsamplers. Guessing it from token counts, as tomesd does, fails at some sizes
    (33x36 latents crash it at level 8).
    """
    names = path.split(".")
    for index, name in enumerate(names):
        for unet in unets:
            if name not in (unet.down, unet.middle, unet.up):
                continue
            root, within = find_layer(model, ".".join(names[:index])), names[index + 1 :]
            # By position, as the blocks of a user's UNet may have names.
            blocks = [child for child, _ in getattr(root, name).named_children()]
            number = blocks.index(within[0]) if within and within[0] in blocks else 0
            resized = getattr(root, unet.up if name == unet.up else unet.down, None)
            changes = [] if resized is None else [_changes_size(block) for block in resized.children()]
            if name == unet.up:  # the doublings from here on
                changes = changes[number:]
            elif name == unet.down:
                changes = changes[: number + unet.halves_at_start]
            return 2 ** sum(changes) * unet.patch(root)
    return 1


def _changes_size(block: Layer) -> bool:
    """Return whether a block of a UNet halves or doubles the resolution."""
    return (
        any(getattr(block, name, None) for name in ("downsamplers", "upsamplers", "resnet_up"))
        or any(is_a(layer, "Sequential") for layer in block.children())
        or any(is_a(layer, "Downsample", "Upsample") for layer in block.sublayers(include_self=True))
    )
