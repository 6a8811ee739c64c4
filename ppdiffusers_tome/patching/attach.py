"""Attach ToMe to a model and take it off again.

Nothing is stored on the model but hooks and what stands in for methods of attention (``StandIn``), each of a small
object; what is attached is found by looking at them. That is why a deep copy or a pickle of a model carries its own
ToMe, and why removing it from a part leaves the rest working.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.methods import KEEP, METHODS
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, Section
from ppdiffusers_tome.patching.blocks import MergeableBlock, attention_with_mask, execution_order
from ppdiffusers_tome.patching.hooks.base import Hooks
from ppdiffusers_tome.patching.hooks.block import BlockHooks, HostHooks
from ppdiffusers_tome.patching.hooks.denoiser import DenoiserHooks, TimestepHooks
from ppdiffusers_tome.patching.hooks.keyword_attention import KeywordAttentionHooks
from ppdiffusers_tome.patching.hooks.mask import MaskMerger
from ppdiffusers_tome.patching.hooks.mask_channel import MaskAsChannel, has_plain_scores
from ppdiffusers_tome.patching.hooks.merge import SectionHooks
from ppdiffusers_tome.patching.hooks.method_override import StandIn
from ppdiffusers_tome.patching.layers import is_a, layer_at
from ppdiffusers_tome.patching.paddle_compat import after, before, remove_hooks
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.step_caches import reset_step_caches
from ppdiffusers_tome.settings.config import ToMeConfig

if TYPE_CHECKING:
    from paddle.nn import Layer


def attach(model: Layer, sites: Iterable[MergeableBlock], config: ToMeConfig) -> None:
    """Put ToMe on the given blocks of one denoiser; ``detach`` mirrors it."""
    for layer in model.sublayers(include_self=True):
        reset_step_caches(layer, also_whole=True)
    in_order = execution_order(sites)
    attachment = Attachment(config, max_timestep=in_order[0].adapter.max_timestep)
    timestep_layer = _timestep_layer(model)
    parameters = tuple(inspect.signature(type(model).forward).parameters)[1:]
    reads_timestep = timestep_layer is None and is_a(model, "ModelMixin")
    denoiser_hooks = DenoiserHooks(attachment, parameters, reads_timestep=reads_timestep)
    before(model, denoiser_hooks.begin, with_keywords=True)
    if timestep_layer is not None:
        before(timestep_layer, TimestepHooks(attachment, model).tell)
    method = METHODS[config.method]
    hosts: dict[tuple[int, str], HostHooks] = {}
    for number, site in enumerate(in_order):
        how = KEEP if method.combine is None else method.combine(number / max(1, len(in_order) - 1))
        host = (id(site.host), site.adapter.block_class)
        if host not in hosts:
            hosts[host] = host_hooks = HostHooks(attachment, site)
            before(layer_at(site.host, site.adapter.latent), host_hooks.enter, with_keywords=True)
        block_hooks = BlockHooks(attachment, hosts[host])
        before(site.block, block_hooks.enter)
        after(site.block, block_hooks.leave)
        if site.adapter.metric:
            before(layer_at(site.block, site.adapter.metric), block_hooks.see)
        for role, section in site.sections(config):
            _attach_section(attachment, site.block, role, section, how, keeps_queries=method.keeps_queries)
    # What begins first ends last, also where one layer is a block, its host and the denoiser.
    for host_hooks in hosts.values():
        after(host_hooks.host, host_hooks.leave, always=True)
    after(model, denoiser_hooks.end, always=True)


def _attach_section(
    attachment: Attachment, block: Layer, role: str, section: Section, how: str, *, keeps_queries: bool
) -> None:
    if section.keyword:
        _attach_keyword_attention(attachment, layer_at(block, section.leave), role, section, how, keeps_queries=keeps_queries)
        return
    around = [layer_at(block, path) for path in (*section.enter, section.leave)]
    attention = attention_with_mask(block, section)
    hooks = SectionHooks(attachment, role, attention, how, section)
    if keeps_queries:
        for path in section.keys:
            before(layer_at(block, path), hooks.merge)
    else:
        for layer in around[:-1]:
            if section.after:
                after(layer, hooks.merge_output)
            else:
                before(layer, hooks.merge)
    after(around[-1], hooks.unmerge)
    if role == ATTENTION and attention is not None:
        MaskMerger(attachment, attention).put()
        if attachment.config.uses_group_sizes and has_plain_scores(attention):
            MaskAsChannel(attachment, attention).put()


def _attach_keyword_attention(
    attachment: Attachment, attention: Layer, role: str, section: Section, how: str, *, keeps_queries: bool
) -> None:
    hooks = KeywordAttentionHooks(attachment, role, attention, how, section)
    before(attention, hooks.enter, with_keywords=True)
    after(attention, hooks.leave)
    inside: dict[str, Callable] = {"to_q": hooks.run}
    if keeps_queries:
        inside |= {"to_k": hooks.merge_keys, "to_v": hooks.merge}
    behind: dict[str, Callable] = {}
    if section.rotary:
        behind = {
            "norm_q": hooks.turn_queries, "norm_k": hooks.turn_keys,
            "norm_added_q": hooks.turn_text_queries, "norm_added_k": hooks.turn_text_keys,
        }  # fmt: skip
    for put, where in ((before, inside), (after, behind)):
        for name, hook in where.items():
            if layer_at(attention, name) is not None:
                put(layer_at(attention, name), hook)


def detach(model: Layer) -> None:
    """Take off whatever ``attach`` put on a model or a part of one; harmless where nothing is attached."""
    for layer in model.sublayers(include_self=True):
        remove_hooks(layer, lambda hook: isinstance(getattr(hook, "__self__", None), Hooks))
        reset_step_caches(layer)
        for name in (MaskMerger.NAME, MaskAsChannel.NAME):
            while isinstance(stand_in := vars(layer).get(name), StandIn):
                stand_in.remove()  # a layer that two denoisers hold has one of each


def attached_blocks(model: Layer) -> list[tuple[str, Layer, BlockHooks]]:
    """Every block of a model that ToMe is attached to: its path, itself and its hooks."""
    return [
        (path, layer, hooks)
        for path, layer in model.named_sublayers(include_self=True)
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hooks := getattr(hook, "__self__", None), BlockHooks) and hook == hooks.enter
    ]


def _timestep_layer(model: Layer) -> Any | None:
    """The layer that embeds the timestep, called with it positionally in every UNet, ControlNet and transformer."""
    if hasattr(model, "time_proj"):
        return model.time_proj
    return next((layer for layer in model.sublayers() if is_a(layer, "Timesteps")), None)
