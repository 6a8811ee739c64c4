"""Where in a model tokens can be merged: the blocks, their hosts and their levels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.blocks import adapters
from ppdiffusers_tome.blocks.adapter import BlockAdapter, Section
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.methods import methods
from ppdiffusers_tome.refused import refusal


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

    def sections(self, config: ToMeConfig) -> list[tuple[str, Section]]:
        """The sections that merge with these settings, with their roles; a block may lack some layers."""
        return [
            (role, section)
            for role, section in self.adapter.sections.items()
            if getattr(config, role) and layer_at(self.block, section.leave) is not None
            and (section.keys or not methods()[config.method].keys_only)
        ]


def layer_at(layer: Any, path: str) -> Any:
    """The sublayer at a dotted path, "" for the layer itself; None where there is none."""
    for name in filter(None, path.split(".")):
        layer = getattr(layer, name, None)
    return layer


def is_a(layer: Any, *class_names: str) -> bool:
    """True when a class of one of those names is among the layer's; nothing is imported to find out."""
    return any(cls.__name__ in class_names for cls in type(layer).__mro__)


def find_sites(model: Any) -> list[Site]:
    """Every block of a model, or of a part of one, that an adapter knows. Levels count from ``model``."""
    sites, seen = [], set()
    for path, layer in _layers(model):
        for adapter in adapters():
            if not is_a(layer, *adapter.inside):
                continue
            for name, block in layer.named_sublayers():
                if is_a(block, adapter.block_class) and id(block) not in seen and adapter.usable(block):
                    seen.add(id(block))
                    host = block if adapter.own_host else layer
                    block_path = f"{path}.{name}".lstrip(".")
                    # A block that is its own host may stand in any part of the layer that it is looked for in.
                    downsampled = _downsampled(model, block_path if adapter.own_host else path)
                    level = downsampled * adapter.downsample(host)
                    sites.append(Site(block_path, block, host, adapter, level))
    return sites


def reached(sites: list[Site], config: ToMeConfig) -> list[Site]:
    """The sites that merge with these settings; ``max_downsample=None`` reaches the finest level that there is."""
    merging = [site for site in sites if site.sections(config)]
    if config.levels is not None:
        return [site for site in merging if site.level in config.levels]
    limit = config.max_downsample or min((site.level for site in merging), default=1)
    return [site for site in merging if site.level <= limit]


def execution_order(sites: Iterable[Site]) -> list[Site]:
    """Sites as their blocks run: a UNet's way down, its middle, its way up; elsewhere the order they stand in."""

    def stage(site: Site) -> int:
        part = _PART.match(site.name)
        return 0 if part is None or part[2] else 1 if part[3] else 2

    return sorted(sites, key=stage)


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """All layers with their paths, the model first, but for those of which it is known why nothing merges there."""
    refused: tuple[str, ...] = ()
    for path, layer in model.named_sublayers(include_self=True):
        if path.startswith(refused):
            continue
        if refusal(layer):
            if not path:
                return
            refused += (f"{path}.",)
        else:
            yield path, layer


# How the parts of a UNet are called, in the order in which they run: ppdiffusers' way and OpenAI's.
_PART = re.compile(
    r"(.*?)(?:(down_blocks|input_blocks)|(mid_block|middle_block)|(up_blocks|output_blocks))(?:\.(\d+))?(?:\.|$)"
)
_DOWN = {"mid_block": "down_blocks", "middle_block": "input_blocks"}


def _downsampled(model: Any, path: str) -> int:
    """How many times smaller than its input a UNet's grid is at ``path``: counted from the downsamplers before it.

    Guessing it from token counts, as tomesd does, fails at some sizes (33x36 latents crash it at level 8).
    """
    part = _PART.match(path)
    if part is None:
        return 1
    root = model
    for name in filter(None, part[1].split(".")):
        root = getattr(root, name)
    down, middle, up, number = part[2], part[3], part[4], int(part[5] or 0)
    # Wuerstchen's decoder works on patches, and halves where a level begins; all others where one ends.
    patches = is_a(root, "WuerstchenDiffNeXt")
    if up:
        changes = [_changes_size(block) for block in getattr(root, up)][number:]
    else:
        changes = [_changes_size(block) for block in getattr(root, down or _DOWN[middle], None) or ()]
        changes = changes[: number + patches] if down else changes
    return 2 ** sum(changes) * (root.config.patch_size if patches else 1)


def _changes_size(block: Any) -> bool:
    """True when a part of a UNet halves the resolution, or doubles it when going up."""
    if getattr(block, "downsamplers", None) or getattr(block, "upsamplers", None):
        return True
    return any(is_a(layer, "Sequential") for layer in block.children()) or any(
        is_a(layer, "Downsample", "Upsample") for layer in block.sublayers(include_self=True)
    )
