"""The level of a block in a UNet, counted from its downsamplers.

Guessing it from token counts, as tomesd does, fails at some sizes (33x36 latents crash it at level 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdiffusers_tome.patching.adapters.adapter import UNetParts
from ppdiffusers_tome.patching.layers import find_layer, is_a

if TYPE_CHECKING:
    from paddle.nn import Layer

# The parts of a UNet, in the order in which they run.
DOWN, MIDDLE, UP = range(3)


@dataclass(frozen=True)
class Place:
    """The place of a layer in a UNet.

    Attributes:
        stage: ``DOWN``, ``MIDDLE`` or ``UP``.
        level: how many times smaller than the UNet's input the grid is.
    """

    stage: int
    level: int


def locate_in_unet(model: Layer, path: str, unets: Sequence[UNetParts]) -> Place | None:
    """Return the place of a layer by its path; None outside UNets."""
    names = path.split(".")
    for index, name in enumerate(names):
        for unet in unets:
            if name in unet.names:
                root = find_layer(model, ".".join(names[:index]))
                stage, within = unet.names.index(name), names[index + 1 :]
                # By position, as the blocks of a user's UNet may have names.
                blocks = [child for child, _ in getattr(root, name).named_children()]
                number = blocks.index(within[0]) if within and within[0] in blocks else 0
                return Place(stage, _level(root, unet, stage, number))
    return None


def _level(root: Layer, unet: UNetParts, stage: int, number: int) -> int:
    """Return the level in the ``number``-th block of a stage."""
    blocks = getattr(root, unet.up if stage == UP else unet.down, None)
    changes = [] if blocks is None else [_changes_size(block) for block in blocks.children()]
    if stage == UP:  # the doublings from here on
        changes = changes[number:]
    elif stage == DOWN:
        changes = changes[: number + unet.halves_at_start]
    return 2 ** sum(changes) * unet.patch(root)


def _changes_size(block: Layer) -> bool:
    """Return whether a block of a UNet halves or doubles the resolution."""
    if any(getattr(block, name, None) for name in ("downsamplers", "upsamplers", "resnet_up")):
        return True
    return any(is_a(layer, "Sequential") for layer in block.children()) or any(
        is_a(layer, "Downsample", "Upsample") for layer in block.sublayers(include_self=True)
    )
