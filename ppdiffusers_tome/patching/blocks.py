"""Blocks in which tokens can merge, with their parents and levels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from paddle.nn import Layer

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.adapters import list_adapters
from ppdiffusers_tome.patching.adapters.adapter import BlockAdapter, MergePoint, UNetParts
from ppdiffusers_tome.patching.denoisers import find_refusal, find_timestep_layer
from ppdiffusers_tome.patching.layers import find_layer, is_a, list_class_names
from ppdiffusers_tome.settings.config import ToMeConfig


@dataclass(frozen=True)
class MergeableBlock:
    """A block of a model in which tokens can merge."""

    path: str  # of the block in its model, ``down_blocks.0.attentions.0.transformer_blocks.0``
    layer: Layer
    parent: Layer  # the layer around it that gets the latent
    denoiser: Layer  # the model around it that embeds a timestep, or the whole
    adapter: BlockAdapter  # describes the block's class
    level: int  # how many times smaller than the latent the block's grid is: 1, 2, 4, 8

    def list_points(self, config: ToMeConfig) -> list[tuple[str, MergePoint]]:
        """Return the roles and points that merge and whose layers exist."""
        keeps_queries = METHODS[config.method].keeps_queries

        def has_layers(point: MergePoint) -> bool:
            paths = [point.layer, *map(point.join_path, point.list_inner_layers(keeps_queries))]
            return all(find_layer(self.layer, path) is not None for path in paths)

        roles = ((role, points) for role, points in self.adapter.points.items() if getattr(config, role))
        return [(role, point) for role, points in roles for point in points if has_layers(point)]


def find_blocks(model: Layer) -> list[MergeableBlock]:
    """Find every block that an adapter describes. Levels count from ``model``."""
    found: dict[int, MergeableBlock] = {}  # a block may be inside of several parents
    for path, parent, denoiser in _walk_parents(model, "", model):
        fitting = _find_adapters(type(parent))  # type: ignore[arg-type]
        for name, layer in parent.named_sublayers() if fitting else ():  # in the order of the model
            adapter = next((each for each in fitting if is_a(layer, each.block_class) and each.can_merge(layer)), None)
            if adapter is None or id(layer) in found:
                continue
            block_path = f"{path}.{name}".lstrip(".")
            # A block that is its own parent may be in any part of the layer that contains it.
            around, located = (layer, block_path) if adapter.block_is_parent else (parent, path)
            level = find_level(model, located, adapter.unets) * adapter.downsample(around)
            found[id(layer)] = MergeableBlock(block_path, layer, around, denoiser, adapter, level)
    return list(found.values())


def select_blocks(blocks: list[MergeableBlock], config: ToMeConfig) -> list[MergeableBlock]:
    """Return the blocks that merge; ``max_downsample=None`` selects the finest level."""
    merging = [block for block in blocks if block.list_points(config)]
    limit = config.max_downsample or min((block.level for block in merging), default=1)
    return [block for block in merging if block.level <= limit]


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


@lru_cache(maxsize=1024)
def _find_adapters(parent_class: type) -> list[BlockAdapter]:
    """Return the adapters whose blocks a layer of this class may contain."""
    names = list_class_names(parent_class)
    return [adapter for adapter in list_adapters() if not names.isdisjoint(adapter.parent_classes)]


def _walk_parents(layer: Layer, path: str, denoiser: Layer) -> Iterator[tuple[str, Layer, Layer]]:
    """Yield paths, layers and their denoisers, without those in ``REFUSED``.

    A denoiser is the innermost model around a layer that embeds timesteps: several ControlNets may be one model, which
    calls each.
    """
    if find_refusal(layer):
        return
    if is_a(layer, "ModelMixin") and find_timestep_layer(layer) is not None:
        denoiser = layer
    yield path, layer, denoiser
    for name, child in layer.named_children():
        yield from _walk_parents(child, f"{path}.{name}".lstrip("."), denoiser)


def _changes_size(block: Layer) -> bool:
    """Return whether a block of a UNet halves or doubles the resolution."""
    return (
        # UNets of ppdiffusers; ``AttnSkipUpBlock2D`` and ``SkipUpBlock2D`` have a ``resnet_up``.
        any(getattr(block, name, None) for name in ("downsamplers", "upsamplers", "resnet_up"))
        # Würstchen's decoder, whose resizing layers are a norm and a convolution.
        or any(is_a(layer, "Sequential") for layer in block.children())
        # LVDM and ModelScope, whose blocks contain layers of these classes, or are such.
        or any(is_a(layer, "Downsample", "Upsample") for layer in block.sublayers(include_self=True))
    )
