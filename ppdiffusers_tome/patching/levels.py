"""Levels of a UNet: how many times smaller than its latent their grids are."""

from collections.abc import Sequence

from paddle.nn import Layer

from ppdiffusers_tome.patching.adapters.adapter import UNetParts
from ppdiffusers_tome.patching.layers import find_layer, is_a


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
