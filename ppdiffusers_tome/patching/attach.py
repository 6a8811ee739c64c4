"""The attachment of ToMe's overrides to a model.

ToMe stores nothing else (see ``overrides.method``), so removing it from a part of a model does not affect the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.methods import MEAN, METHODS, Method
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MergePoint
from ppdiffusers_tome.patching.blocks import MergeableBlock, accepts_key_bias, execution_order, find_timestep_layer
from ppdiffusers_tome.patching.layers import find_layer, is_a
from ppdiffusers_tome.patching.overrides.attention import MaskChannel, MaskPreparation, has_plain_scores
from ppdiffusers_tome.patching.overrides.block import (
    BlockForward,
    GridForward,
    InnerOverrides,
    LayoutReader,
    ParentForward,
    TokensForward,
)
from ppdiffusers_tome.patching.overrides.denoiser import DenoiserForward, TimestepForward
from ppdiffusers_tome.patching.overrides.merge import (
    NORMS,
    TEXT_NORMS,
    EnterForward,
    LeaveForward,
    NormForward,
    PointForward,
)
from ppdiffusers_tome.patching.overrides.method import list_overrides, remove_overrides
from ppdiffusers_tome.patching.paddle_compat import drop_traced_programs
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.step_caches import reset_step_caches
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


def _reset(model: Layer) -> None:
    """Drop cached outputs of earlier steps and traced programs of a model."""
    for layer in model.sublayers(include_self=True):
        reset_step_caches(layer)
        forward = vars(layer).get("forward")
        while forward is not None:
            drop_traced_programs(forward)
            forward = getattr(forward, "previous", None)


def _attach_denoiser(blocks: list[MergeableBlock], config: ToMeConfig) -> None:
    denoiser, method = blocks[0].denoiser, METHODS[config.method]
    attachment = Attachment(config, max_timestep=blocks[0].adapter.max_timestep)
    parents: dict[tuple[int, str], LayoutReader] = {}
    for number, block in enumerate(blocks):
        depth = number / max(1, len(blocks) - 1)
        combine = MEAN if method.combine is None else method.combine(depth)
        reader = parents.setdefault((id(block.parent), block.adapter.block_class), LayoutReader(attachment, block))
        _attach_block(attachment, block, reader, config, combine)
    # The outermost override is stored last, also where one layer is a block, its parent and the denoiser.
    for block in {(id(block.parent), block.adapter.block_class): block for block in blocks}.values():
        reader = parents[id(block.parent), block.adapter.block_class]
        grid_layer = find_layer(block.parent, block.adapter.grid_layer)
        if grid_layer is not block.parent:
            GridForward(attachment, grid_layer, reader).put()
        ParentForward(attachment, block.parent, reader, gets_latent=grid_layer is block.parent).put()
    timestep_layer = find_timestep_layer(denoiser)
    if timestep_layer is not None:
        TimestepForward(attachment, timestep_layer).put()
    reads_timestep = timestep_layer is None and is_a(denoiser, "ModelMixin")
    DenoiserForward(attachment, denoiser, reads_timestep=reads_timestep).put()


def _attach_block(
    attachment: Attachment, block: MergeableBlock, reader: LayoutReader, config: ToMeConfig, combine: str
) -> None:
    inner = InnerOverrides()
    for role, point in block.points(config):
        _attach_point(attachment, block.block, role, point, METHODS[config.method], combine, inner)
    tokens_layer = block.adapter.tokens_layer
    if tokens_layer:
        inner.add(tokens_layer, TokensForward(attachment, find_layer(block.block, tokens_layer)))
    BlockForward(attachment, block.block, reader, inner, sees_tokens=not tokens_layer).put()


def _attach_point(
    attachment: Attachment, block: Layer, role: str, point: MergePoint, method: Method, combine: str,
    inner: InnerOverrides,
) -> None:  # fmt: skip
    layer = find_layer(block, point.layer)
    inner.add(point.layer, PointForward(attachment, layer, point, role, combine))
    entering = point.keys if method.keeps_queries else point.enter if not point.is_one_layer else ()
    for path in entering:
        name, is_last = path.rpartition(".")[2], path == entering[-1]
        entered = find_layer(block, path)
        inner.add(path, EnterForward(attachment, entered, point, combine, name=name, is_last=is_last))
    if not point.is_one_layer and not method.keeps_queries:
        inner.add(point.leave, LeaveForward(attachment, find_layer(block, point.leave), point))
    for name in (*NORMS, *TEXT_NORMS) if point.rotary else ():
        norm = find_layer(layer, name)
        if norm is not None:
            inner.add(f"{point.layer}.{name}", NormForward(attachment, norm, point, name, layer.heads))
    if role == ATTENTION and point.has_prepared_mask and hasattr(layer, "prepare_attention_mask"):
        inner.add(point.layer, MaskPreparation(attachment, layer, point))
        if attachment.config.uses_group_sizes and accepts_key_bias(layer) and has_plain_scores(layer):
            inner.add(point.layer, MaskChannel(attachment, layer))
