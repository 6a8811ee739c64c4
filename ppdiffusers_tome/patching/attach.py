"""The attachment of ToMe's overrides to a model.

ToMe stores nothing else (see ``overrides.method``), so removing it from a part of a model does not affect the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.methods import MEAN, METHODS
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MergePoint
from ppdiffusers_tome.patching.blocks import (
    MergeableBlock,
    accepts_key_bias,
    execution_order,
    find_family,
    find_layer,
    find_timestep_layer,
    is_a,
)
from ppdiffusers_tome.patching.overrides.attention import MaskChannel, MaskPreparation, has_plain_scores
from ppdiffusers_tome.patching.overrides.block import (
    BlockForward,
    InputForward,
    ParentForward,
    read_tokens,
)
from ppdiffusers_tome.patching.overrides.denoiser import DenoiserForward, read_timestep
from ppdiffusers_tome.patching.overrides.merge import NORMS, TEXT_NORMS, InnerForward, PointForward
from ppdiffusers_tome.patching.overrides.method import (
    MethodOverride,
    list_overrides,
    list_replacements,
    remove_overrides,
    reset_step_caches,
)
from ppdiffusers_tome.patching.overrides.step_cache import attach_step_cache
from ppdiffusers_tome.patching.paddle_compat import drop_traced_programs
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.settings.config import ToMeConfig

if TYPE_CHECKING:
    from paddle.nn import Layer


def attach(model: Layer, blocks: Iterable[MergeableBlock], config: ToMeConfig) -> None:
    """Attach ToMe to some blocks of a model; ``detach`` mirrors it."""
    _reset(model)
    by_denoiser: dict[int, list[MergeableBlock]] = {}
    for block in blocks:
        by_denoiser.setdefault(id(block.denoiser), []).append(block)
    for blocks_of_denoiser in by_denoiser.values():
        _attach_denoiser(execution_order(blocks_of_denoiser), config)


def detach(model: Layer) -> None:
    """Remove all overrides from a model or a part of one."""
    layers = model.sublayers(include_self=True)
    overrides = [override for layer in layers for override in list_overrides(layer, with_removed=True)]
    remove_overrides(overrides)
    if overrides:
        _reset(model)


def list_attached_blocks(model: Layer) -> list[tuple[str, Layer, BlockForward]]:
    """Return the path, layer and override of every block with ToMe."""
    return [
        (path, layer, override)
        for path, layer in model.named_sublayers(include_self=True)
        for override in list_overrides(layer)
        if isinstance(override, BlockForward)
    ]


def list_attachments(model: Layer) -> list[tuple[list[MergeableBlock], ToMeConfig]]:
    """Return the blocks and settings with which ``attach`` was called."""
    attached = {(id(layer), override.attachment) for _, layer, override in list_attached_blocks(model)}
    return [
        (
            [block for block in override.blocks if (id(block.block), override.attachment) in attached],
            override.attachment.config,
        )
        for layer in model.sublayers(include_self=True)
        for override in list_overrides(layer)
        if isinstance(override, DenoiserForward)
    ]


def _reset(model: Layer) -> None:
    """Drop the cached outputs and traced programs of a model."""
    for layer in model.sublayers(include_self=True):
        reset_step_caches(layer)
        for forward in list_replacements(layer):
            drop_traced_programs(forward)


def _attach_denoiser(blocks: list[MergeableBlock], config: ToMeConfig) -> None:
    denoiser, method = blocks[0].denoiser, METHODS[config.method]
    attachment = Attachment(config, max_timestep=blocks[0].adapter.max_timestep, family=find_family(denoiser))
    parents: dict[tuple[int, str], tuple[ParentForward, Layer]] = {}
    for number, block in enumerate(blocks):
        depth = number / max(1, len(blocks) - 1)
        combine = MEAN if method.combine is None else method.combine(depth)
        key = id(block.parent), block.adapter.block_class
        if key not in parents:
            grid_layer = find_layer(block.parent, block.adapter.grid_layer)
            parents[key] = ParentForward(attachment, block), grid_layer
        inner = [
            override for role, point in block.points(config)
            for override in _list_overrides(attachment, block, role, point, combine)
        ]  # fmt: skip
        tokens_layer = block.adapter.tokens_layer
        if tokens_layer:
            inner.append((tokens_layer, InputForward(attachment, find_layer(block.block, tokens_layer), read_tokens)))
        for _, override in inner:
            override.put()
        BlockForward(attachment, block, parents[key][0], inner).put()
    # The outermost override is stored last, also where one layer is a block, its parent and the denoiser.
    for parent, grid_layer in parents.values():
        InputForward(attachment, grid_layer, parent.read_layout).put()
        parent.put()
    if config.cache:
        attach_step_cache(attachment, denoiser)
    timestep_layer = find_timestep_layer(denoiser)
    if timestep_layer is not None:
        InputForward(attachment, timestep_layer, read_timestep).put()
    reads_timestep = timestep_layer is None and is_a(denoiser, "ModelMixin")
    DenoiserForward(attachment, denoiser, blocks, reads_timestep=reads_timestep).put()


def _list_overrides(
    attachment: Attachment, block: MergeableBlock, role: str, point: MergePoint, combine: str
) -> list[tuple[str, MethodOverride]]:
    """Create the overrides of a merge point, with their paths in the block."""
    config, layer = attachment.config, find_layer(block.block, point.layer)
    overrides: list[tuple[str, MethodOverride]] = [
        (point.layer, PointForward(attachment, layer, point, role, combine))
    ]
    norms = [name for name in (*NORMS, *TEXT_NORMS) if point.rotary and getattr(layer, name, None) is not None]
    for name in [*point.list_inner_layers(METHODS[config.method].keeps_queries), *norms]:
        inner = InnerForward(attachment, find_layer(layer, name), point, name, getattr(layer, "heads", 0))
        overrides.append((point.path(name), inner))
    if role == ATTENTION and point.has_prepared_mask and hasattr(layer, "prepare_attention_mask"):
        overrides.append((point.layer, MaskPreparation(attachment, layer, point)))
        if config.uses_group_sizes and accepts_key_bias(layer) and has_plain_scores(layer):
            overrides.append((point.layer, MaskChannel(attachment, layer)))
    return overrides
