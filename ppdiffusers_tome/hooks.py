"""Attach ToMe to a model and take it off again.

ToMe before and after a sublayer, ``unmerge(attn1(merge(norm1(x)))) + x``, needs only the sublayer's input and output
and the block's input. So it is attached with Paddle's forward hooks and no ``forward`` is copied or replaced:
whatever norm, processor, LoRA or GLIGEN a block holds goes on as before.

Nothing is stored on the model but hooks, and each hook is a method of a small object; what is attached is found by
looking at the hooks. That is why a deep copy or a pickle of a model carries its own ToMe, and why removing it from a
part leaves the rest working.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import paddle

from ppdiffusers_tome.blocks.adapter import ATTENTION
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.sites import Site, is_a
from ppdiffusers_tome.state import RunState


class _Hooks:
    """The hooks on one layer, block or host; ``run`` is shared by all of one denoiser."""

    def __init__(self, run: RunState) -> None:
        self.run = run


class TimestepHooks(_Hooks):
    """On the layer that embeds the timestep: it is called first, with the timestep, in every denoiser."""

    def begin(self, layer: Any, inputs: tuple) -> None:
        self.run.begin_call(inputs[0] if inputs else None, training=layer.training)


class HostHooks(_Hooks):
    """On the layer around the blocks: it sees the picture, so it knows the grid at any aspect ratio and odd size."""

    def __init__(self, run: RunState, grid: Callable[[Any, paddle.Tensor], Grid]) -> None:
        super().__init__(run)
        self.grid = grid

    def enter(self, host: Any, inputs: tuple) -> None:
        self.run.enter_host(self.grid(host, inputs[0]), will_rerun=bool(getattr(host, "gradient_checkpointing", False)))

    def leave(self, host: Any, inputs: tuple, output: Any) -> None:
        self.run.leave_host()


class BlockHooks(_Hooks):
    """On one block and its sublayers."""

    def enter(self, block: Any, inputs: tuple) -> None:
        self.run.enter_block(self, inputs[0])

    def leave(self, block: Any, inputs: tuple, output: Any) -> None:
        self.run.leave_block()

    def merge(self, sublayer: Any, inputs: tuple) -> tuple | None:
        matching = self.run.matching
        if matching is None:
            return None
        if not matching.fits(inputs[0]):
            self.run.leave_block()
            self.run.warn_once(
                "sublayer",
                f"{type(sublayer).__name__} got tokens of shape {list(inputs[0].shape)} instead of "
                f"[{matching.batch}, {matching.num_tokens}, channels] (feed-forward chunking does that), so it runs "
                "unmerged; switch chunking off to merge here",
            )
            return None
        return (matching.merge(inputs[0]), *inputs[1:])

    def unmerge(self, sublayer: Any, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        matching = self.run.matching
        return None if matching is None else matching.unmerge(output)


class MaskMerger(_Hooks):
    """Stands in for ``Attention.prepare_attention_mask``: a self-attention mask must merge with its tokens.

    Every attention processor hands its mask to that method. Paddle 2.6 shows hooks no keyword arguments, so it is
    where the mask can be met on every version.
    """

    NAME = "prepare_attention_mask"

    def __init__(self, run: RunState, attention: Any) -> None:
        super().__init__(run)
        self.attention = attention

    def __call__(self, mask: paddle.Tensor | None, *args: Any, **kwargs: Any) -> paddle.Tensor | None:
        matching = self.run.matching
        if matching is not None and mask is not None and mask.shape[-1] == matching.num_tokens:
            mask = matching.merge_mask(mask)
        return type(self.attention).prepare_attention_mask(self.attention, mask, *args, **kwargs)


def attach(model: Any, sites: Iterable[Site], config: ToMeConfig) -> None:
    """Put ToMe on the given blocks of one denoiser; ``detach`` mirrors it."""
    run = RunState(config)
    timestep_layer = _timestep_layer(model)
    if timestep_layer is not None:
        timestep_layer.register_forward_pre_hook(TimestepHooks(run).begin)
    hosts = set()
    for site in sites:
        if id(site.host) not in hosts:
            hosts.add(id(site.host))
            host_hooks = HostHooks(run, site.adapter.grid)
            site.host.register_forward_pre_hook(host_hooks.enter)
            site.host.register_forward_post_hook(host_hooks.leave)
        block_hooks = BlockHooks(run)
        site.block.register_forward_pre_hook(block_hooks.enter)
        site.block.register_forward_post_hook(block_hooks.leave)
        for role, name in site.adapter.sublayers.items():
            sublayer = getattr(site.block, name, None)
            if sublayer is None or not getattr(config, role):
                continue
            sublayer.register_forward_pre_hook(block_hooks.merge)
            sublayer.register_forward_post_hook(block_hooks.unmerge)
            if role == ATTENTION and hasattr(sublayer, MaskMerger.NAME):
                setattr(sublayer, MaskMerger.NAME, MaskMerger(run, sublayer))


def detach(model: Any) -> None:
    """Take off whatever ``attach`` put on a model or a part of one; harmless where nothing is attached."""
    for layer in model.sublayers(include_self=True):
        for hooks in (layer._forward_pre_hooks, layer._forward_post_hooks):
            for hook_id in [i for i, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), _Hooks)]:
                del hooks[hook_id]
        if isinstance(vars(layer).get(MaskMerger.NAME), MaskMerger):
            delattr(layer, MaskMerger.NAME)


def attached_configs(model: Any) -> list[ToMeConfig]:
    """The settings on every block of a model that ToMe is attached to, one entry a block."""
    return [
        hook.__self__.run.config
        for layer in model.sublayers(include_self=True)
        for hook in layer._forward_pre_hooks.values()
        if isinstance(getattr(hook, "__self__", None), BlockHooks) and hook.__name__ == "enter"
    ]


def _timestep_layer(model: Any) -> Any | None:
    """The layer that embeds the timestep, called with it positionally in every UNet, ControlNet and transformer."""
    if hasattr(model, "time_proj"):
        return model.time_proj
    return next((layer for layer in model.sublayers() if is_a(layer, "Timesteps")), None)
