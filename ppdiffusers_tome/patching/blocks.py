"""Where in a model tokens can be merged: the blocks, their hosts and their levels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.adapters import adapters
from ppdiffusers_tome.patching.adapters.adapter import BlockAdapter, Section
from ppdiffusers_tome.patching.layers import is_a, layer_at
from ppdiffusers_tome.patching.levels import DOWN, locate_in_unet
from ppdiffusers_tome.patching.paddle_compat import HOOKS_SEE_KEYWORDS
from ppdiffusers_tome.patching.unsupported import find_refusal
from ppdiffusers_tome.settings.config import ToMeConfig

if TYPE_CHECKING:
    from paddle.nn import Layer

# Processors whose keys are made by ``to_k`` of the attention's own tokens, each image's for itself.
_OF_OWN_KEYS = {
    "AttnProcessor", "AttnProcessor2_5", "ChunkedAttnProcessor", "LoRAAttnProcessor", "LoRAXFormersAttnProcessor",
    "SlicedAttnProcessor", "XFormersAttnProcessor",
}  # fmt: skip


@dataclass(frozen=True)
class MergeableBlock:
    """A block that can merge.

    Attributes:
        name: path of the block in its model, ``down_blocks.0.attentions.0.transformer_blocks.0``.
        block, host: the block and the layer around it that sees the latent.
        adapter: how to attach to them.
        level: how many times smaller than the latent the block's grid is: 1, 2, 4, 8.
        stage: of a UNet, ``DOWN``, ``MIDDLE`` or ``UP``; None in other models.
    """

    name: str
    block: Layer
    host: Layer
    adapter: BlockAdapter
    level: int
    stage: int | None = None

    def sections(self, config: ToMeConfig) -> list[tuple[str, Section]]:
        """The sections that merge with these settings, with their roles; a block may lack some layers."""
        return [
            (role, section)
            for role, sections in self.adapter.sections.items()
            for section in sections
            if getattr(config, role) and layer_at(self.block, section.leave) is not None
            and (section.keys or not METHODS[config.method].keeps_queries)
            and (not section.keyword or HOOKS_SEE_KEYWORDS)
        ]

    def weighs(self, section: Section, config: ToMeConfig) -> bool:
        """Whether attention of a section can be told how many tokens each stands for, see ``ToMeConfig``."""
        if section.keyword:
            return bool(section.mask)
        # Attention that merges layer by layer asks for its mask before its tokens merge; keys are told by then.
        if not section.is_one_layer and not METHODS[config.method].keeps_queries:
            return False
        return accepts_key_bias(attention_with_mask(self.block, section))


def attention_with_mask(block: Layer, section: Section) -> Any:
    """The attention of a section, or around it, whose processor asks it for a mask; None where there is none."""
    around = [layer_at(block, path) for path in (*section.enter, section.leave)]
    # A section is an attention layer, or within one (such as the block itself).
    parents = [layer_at(block, section.leave.rpartition(".")[0])]
    return next((layer for layer in (*around, *parents, block) if hasattr(layer, "prepare_attention_mask")), None)


def accepts_key_bias(attention: Any) -> bool:
    """Whether an attention's mask is for the block's own keys, not also for a text's that it makes by other layers."""
    return attention is not None and getattr(attention, "add_k_proj", None) is None


def gets_group_sizes(attention: Any, config: ToMeConfig) -> bool:
    """Whether an attention is to be told how many tokens each key stands for.

    Unless settings ask for it, processors that are not known are not: their keys may be others than the block's.
    """
    known = type(getattr(attention, "processor", None)).__name__ in _OF_OWN_KEYS
    return config.uses_group_sizes and accepts_key_bias(attention) and (known or config.proportional is True)


def find_blocks(model: Layer) -> list[MergeableBlock]:
    """Every block of a model, or of a part of one, that an adapter knows. Levels count from ``model``."""
    sites, seen = [], set()
    for path, layer in _layers(model):
        inside = [adapter for adapter in adapters() if is_a(layer, *adapter.inside)]
        for name, block in layer.named_sublayers() if inside else ():  # in the order in which they stand
            for adapter in inside:
                if is_a(block, adapter.block_class) and id(block) not in seen and adapter.usable(block):
                    seen.add(id(block))
                    host = block if adapter.block_is_parent else layer
                    block_path = f"{path}.{name}".lstrip(".")
                    # A block that is its own host may stand in any part of the layer that it is looked for in.
                    place = locate_in_unet(model, block_path if adapter.block_is_parent else path, adapter.unets)
                    level = (1 if place is None else place.level) * adapter.downsample(host)
                    stage = None if place is None else place.stage
                    sites.append(MergeableBlock(block_path, block, host, adapter, level, stage))
    return sites


def select_blocks(sites: list[MergeableBlock], config: ToMeConfig) -> list[MergeableBlock]:
    """The sites that merge with these settings; ``max_downsample=None`` reaches the finest level that there is."""
    merging = [site for site in sites if site.sections(config)]
    if config.levels is not None:
        return [site for site in merging if site.level in config.levels]
    limit = config.max_downsample or min((site.level for site in merging), default=1)
    return [site for site in merging if site.level <= limit]


def execution_order(sites: Iterable[MergeableBlock]) -> list[MergeableBlock]:
    """Sites as their blocks run: a UNet's way down, its middle, its way up; elsewhere the order they stand in."""
    return sorted(sites, key=lambda site: site.stage or DOWN)


def _layers(model: Layer) -> Iterator[tuple[str, Layer]]:
    """All layers with their paths, the model first, but for those of which it is known why nothing merges there."""
    refused: tuple[str, ...] = ()
    for path, layer in model.named_sublayers(include_self=True):
        if path.startswith(refused):
            continue
        if find_refusal(layer):
            if not path:
                return
            refused += (f"{path}.",)
        else:
            yield path, layer
