"""Overrides put on the layers of a model, and taken off.

ToMe stores nothing else on a model.
"""

from collections.abc import Sequence

from paddle.nn import Layer

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, NORMS, OUTPUT, TEXT_NORMS, MergePoint
from ppdiffusers_tome.patching.blocks import MergeableBlock
from ppdiffusers_tome.patching.denoisers import find_timestep_layer
from ppdiffusers_tome.patching.layers import find_layer, is_a
from ppdiffusers_tome.patching.override import Override, list_overrides, walk_overrides
from ppdiffusers_tome.patching.overrides.attention import MaskOverride
from ppdiffusers_tome.patching.overrides.block import BlockOverride, GridOverride
from ppdiffusers_tome.patching.overrides.denoiser import DenoiserOverride, TimestepOverride
from ppdiffusers_tome.patching.overrides.merge import NormOverride, OutputOverride, PointOverride, ProjectionOverride
from ppdiffusers_tome.patching.paddle_compat import drop_traced_programs
from ppdiffusers_tome.patching.slots import close_slots
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.step_cache.skipped_layers import ChainOverride, LevelOverride, create_cache_overrides
from ppdiffusers_tome.settings.config import ToMeConfig

# Where one layer has several overrides, as where it is a block, its parent and the denoiser, from the outermost in.
ORDER: tuple[type[Override], ...] = (
    DenoiserOverride, TimestepOverride, LevelOverride, ChainOverride, GridOverride, BlockOverride, PointOverride,
    MaskOverride, ProjectionOverride, OutputOverride, NormOverride,
)  # fmt: skip


def attach(blocks: Sequence[MergeableBlock], config: ToMeConfig) -> None:
    """Attach ToMe to some blocks; ``detach`` mirrors it."""
    for denoiser in dict.fromkeys(block.denoiser for block in blocks):
        _attach_denoiser([block for block in blocks if block.denoiser is denoiser], config)


def detach(model: Layer) -> None:
    """Remove ToMe from a model."""
    overrides = list(walk_overrides(model))
    for override in reversed(overrides):
        override.take_off()
    for layer in model.sublayers(include_self=True):
        close_slots(layer)  # of one whose last override went while a function of the user was around it
        if overrides:
            drop_traced_programs(vars(layer).get("forward"))


def list_attached_blocks(model: Layer) -> list[tuple[str, Layer, BlockOverride]]:
    """Return the path, layer and override of every block with ToMe."""
    return [
        (path, layer, override)
        for path, layer in model.named_sublayers(include_self=True)
        for override in list_overrides(layer)
        if isinstance(override, BlockOverride)
    ]


def _attach_denoiser(blocks: list[MergeableBlock], config: ToMeConfig) -> None:
    denoiser = blocks[0].denoiser
    state = DenoiserState(config, max_timestep=blocks[0].adapter.max_timestep)
    grids: dict[tuple[int, str], GridOverride] = {}  # one for all blocks of a class in a parent
    overrides: list[Override] = create_cache_overrides(state, denoiser) if config.cache else []
    for block in blocks:
        key = (id(block.parent), block.adapter.block_class)
        grid = grids[key] = grids.get(key) or GridOverride(state, block)
        inner = [
            pair for role, point in block.list_points(config)
            for pair in _create_overrides(state, block, role, point)
        ]  # fmt: skip
        overrides += [BlockOverride(state, block, grid, inner), *(override for _, override in inner)]
    overrides += grids.values()
    timestep_layer = find_timestep_layer(denoiser)
    if timestep_layer is not None:
        overrides.append(TimestepOverride(state, timestep_layer))
    # A DiT embeds it inside its first block, too late for a cache over steps.
    embeds_in_block = bool(config.cache) and any(
        layer is timestep_layer for block in blocks for layer in block.layer.sublayers()
    )
    reads_timestep = embeds_in_block or (timestep_layer is None and is_a(denoiser, "ModelMixin"))
    overrides.append(DenoiserOverride(state, denoiser, blocks, reads_timestep=reads_timestep))
    for override in sorted(overrides, key=lambda each: ORDER.index(type(each)), reverse=True):
        override.put()


def _create_overrides(
    state: DenoiserState, block: MergeableBlock, role: str, point: MergePoint
) -> list[tuple[str, Override]]:
    config, layer = state.config, find_layer(block.layer, point.layer)
    overrides: list[tuple[str, Override]] = [(point.layer, PointOverride(state, layer, point, role))]
    for name in point.list_inner_layers(METHODS[config.method].keeps_queries):
        kind = OutputOverride if name == OUTPUT else ProjectionOverride
        overrides.append((point.join_path(name), kind(state, find_layer(layer, name), name)))
    for name in (*NORMS, *TEXT_NORMS) if point.rotary else ():
        if (norm := getattr(layer, name, None)) is not None:
            overrides.append((point.join_path(name), NormOverride(state, norm, name, getattr(layer, "heads", 0))))
    if role == ATTENTION and point.prepares_mask and hasattr(layer, "prepare_attention_mask"):
        overrides.append((point.layer, MaskOverride(state, layer)))
    return overrides
