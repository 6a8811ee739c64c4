"""Where in a model tokens can be merged: the blocks, their hosts and their levels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.blocks import adapters
from ppdiffusers_tome.blocks.adapter import BlockAdapter


@dataclass(frozen=True)
class Site:
    """A block that can merge.

    Attributes:
        name: path of the block in its model, ``down_blocks.0.attentions.0.transformer_blocks.0``.
        block, host: the block and the layer around it that sees the picture.
        adapter: how to attach to them.
        level: how many times smaller than the latent the block's grid is: 1, 2, 4, 8.
    """

    name: str
    block: Any
    host: Any
    adapter: BlockAdapter
    level: int


def is_a(layer: Any, class_name: str) -> bool:
    """True when a class of that name is among the layer's; nothing is imported to find out."""
    return any(cls.__name__ == class_name for cls in type(layer).__mro__)


def find_sites(model: Any) -> list[Site]:
    """Every block of a model, or of a part of one, that an adapter knows. Levels count from ``model``."""
    sites, seen = [], set()
    for path, host in model.named_sublayers(include_self=True):
        for adapter in adapters():
            if not is_a(host, adapter.host_class):
                continue
            level = _downsampled(model, path) * adapter.downsample(host)
            for name, block in host.named_sublayers():
                if is_a(block, adapter.block_class) and id(block) not in seen:
                    seen.add(id(block))
                    sites.append(Site(f"{path}.{name}".lstrip("."), block, host, adapter, level))
    return sites


def _downsampled(model: Any, path: str) -> int:
    """How many times smaller than its input a UNet's grid is at ``path``: counted from the downsamplers before it.

    Guessing it from token counts, as tomesd does, fails at some sizes (33x36 latents crash it at level 8).
    """
    part = re.match(r"(.*?)(down_blocks|up_blocks|mid_block)(?:\.(\d+))?(?:\.|$)", path)
    if part is None:
        return 1
    root = model
    for name in filter(None, part[1].split(".")):
        root = getattr(root, name)
    halvings = [_halves(block) for block in getattr(root, "down_blocks", None) or ()]
    if part[2] == "down_blocks":
        return 2 ** sum(halvings[: int(part[3])])
    if part[2] == "mid_block":
        return 2 ** sum(halvings)
    doublings = [_halves(block) for block in root.up_blocks]
    return 2 ** sum(doublings[int(part[3]) :])


def _halves(block: Any) -> bool:
    """True when a UNet block changes the resolution by two: ``downsamplers``, or ``upsamplers`` when going up."""
    return bool(getattr(block, "downsamplers", None) or getattr(block, "upsamplers", None))
