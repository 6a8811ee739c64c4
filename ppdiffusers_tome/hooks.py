"""Attach ToMe to a model and take it off again.

ToMe before and after a sublayer, ``unmerge(attn1(merge(norm1(x)))) + x``, needs only the sublayer's input and output
and the block's input. So it is attached with Paddle's forward hooks and no ``forward`` is copied or replaced:
whatever norm, processor, LoRA or GLIGEN a block holds goes on as before.

Nothing is stored on the model but hooks, and each hook is a method of a small object; what is attached is found by
looking at the hooks. That is why a deep copy or a pickle of a model carries its own ToMe, and why removing it from a
part leaves the rest working.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import paddle

from ppdiffusers_tome.blocks.adapter import ATTENTION, CROSS_ATTENTION, ROLES, Section
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.grid import Layout
from ppdiffusers_tome.matching import Keys, Matching
from ppdiffusers_tome.methods import methods
from ppdiffusers_tome.methods.method import KEEP
from ppdiffusers_tome.sites import Site, execution_order, is_a, layer_at
from ppdiffusers_tome.state import RunState


class _Hooks:
    """The hooks on one layer, block or host; ``run`` is shared by all of one denoiser."""

    def __init__(self, run: RunState) -> None:
        self.run = run


class TimestepHooks(_Hooks):
    """On the layer that embeds the timestep, called first and with the timestep; else on the model itself."""

    def begin(self, layer: Any, inputs: tuple) -> None:
        self.run.begin_call(inputs[0] if inputs else None, training=layer.training)

    def begin_model(self, model: Any, inputs: tuple) -> None:
        """Every denoiser without such a layer is called with the picture and the timestep, some with keywords."""
        timestep = inputs[1] if len(inputs) > 1 else None
        if isinstance(timestep, (int, float)):
            timestep = paddle.to_tensor([timestep])
        known = isinstance(timestep, paddle.Tensor) and timestep.ndim <= 1
        self.run.begin_call(timestep if known else None, training=model.training)


class HostHooks(_Hooks):
    """On the layer around the blocks, and on the one that sees the picture and so its grid, exact at any shape."""

    def __init__(self, run: RunState, site: Site) -> None:
        super().__init__(run)
        self.host, self.level = site.host, site.level
        self.grid, self.prefix = site.adapter.grid, site.adapter.prefix(site.host)

    def enter(self, layer: Any, inputs: tuple) -> None:
        if not inputs:
            _unseen(self.run, layer)
            self.run.leave_host()
            return
        rerun = bool(getattr(self.host, "gradient_checkpointing", False))
        self.run.enter_host(Layout(self.grid(self.host, inputs[0]), self.prefix, self.level), will_rerun=rerun)

    def leave(self, host: Any, inputs: tuple, output: Any) -> None:
        self.run.leave_host()


class BlockHooks(_Hooks):
    """On one block, and on the layer that sees its tokens first where that is another."""

    def enter(self, block: Any, inputs: tuple) -> None:
        self.run.enter_block(self, inputs[0] if inputs else None)

    def see(self, layer: Any, inputs: tuple) -> None:
        self.run.see_tokens(inputs[0])

    def leave(self, block: Any, inputs: tuple, output: Any) -> None:
        if self.run.unasked:
            self.run.warn_once(
                "unasked",
                f"{type(block).__name__} did not call the layers at which its tokens merge (an attention processor of "
                "your own may make keys by other layers), so it runs unmerged; method='tome' needs no such layers",
            )
        self.run.leave_block()


class SectionHooks(_Hooks):
    """On the layers where a section of a block begins and ends.

    Args:
        run: the state of the denoiser.
        role: what the section does, one of ``ROLES``.
        attention: the layer of the section that has an attention processor, or None.
        how: as in ``Matching.merge``.
        trailing: as in ``Section``.
    """

    def __init__(self, run: RunState, role: str, attention: Any, how: str, *, trailing: bool) -> None:
        super().__init__(run)
        self.role = role
        self.attention = attention
        self.how = how
        self.trailing = trailing

    def merge(self, layer: Any, inputs: tuple) -> tuple | None:
        if not inputs:
            _unseen(self.run, layer)
            return None
        merged = self._merged(layer, inputs[0])
        return None if merged is None else (merged, *inputs[1:])

    def merge_output(self, layer: Any, inputs: tuple, output: Any) -> Any:
        several = isinstance(output, tuple)
        merged = self._merged(layer, output[0] if several else output)
        if merged is None:
            return None
        return (merged, *output[1:]) if several else merged

    def unmerge(self, layer: Any, inputs: tuple, output: Any) -> Any:
        matching = self.run.matching
        if not isinstance(matching, Matching) or self.run.section is not self:
            return None
        self.run.section = None
        if isinstance(output, tuple):
            return (matching.unmerge(output[0]), *output[1:])
        return matching.unmerge(output)

    def _merged(self, layer: Any, x: paddle.Tensor) -> paddle.Tensor | None:
        """What goes on in place of ``x``; None when it stays."""
        matching = self.run.matching
        if matching is None or _keeps_maps(self.run, self.role, self.attention):
            return None
        if matching.fits(x):
            merged = matching.merge(x, self.how)
        elif self.trailing and x.shape[1] > matching.num_tokens:
            own, others = x[:, : matching.num_tokens], x[:, matching.num_tokens :]
            merged = paddle.concat([matching.merge(own, self.how), others], axis=1)
        elif self.run.section is self:
            return None  # a processor's keys may come from elsewhere; its queries are merged already
        else:
            self.run.leave_block()
            self.run.warn_once(
                "sublayer",
                f"{type(layer).__name__} got tokens of shape {list(x.shape)} instead of "
                f"[{matching.batch}, {matching.num_tokens}, channels] (feed-forward chunking does that), so it runs "
                "unmerged; switch chunking off to merge here",
            )
            return None
        self.run.section = self
        return merged


def _unseen(run: RunState, layer: Any) -> None:
    """Paddle 2.6 shows hooks no keywords, and ppdiffusers calls these layers by position."""
    name = type(layer).__name__
    run.warn_once("keywords", f"{name} was called by keyword, which ToMe does not see, so it runs unmerged")


# Processors that keep attention maps for their pipelines to read as pictures, and the attention whose maps are kept:
# Self-Attention Guidance, Attend-and-Excite (which drops those of self-attention), Pix2Pix Zero. Maps of merged tokens
# would differ in size.
_KEEPERS_OF_MAPS = {
    "CrossAttnStoreProcessor": ROLES,
    "AttendExciteAttnProcessor": (CROSS_ATTENTION,),
    "Pix2PixZeroAttnProcessor": ROLES,
}


def _keeps_maps(run: RunState, role: str, attention: Any) -> bool:
    """True where the attention of a section keeps its maps."""
    processor = type(getattr(attention, "processor", None)).__name__
    if role not in _KEEPERS_OF_MAPS.get(processor, ()):
        return False
    run.warn_once("maps", f"{processor} keeps attention maps of all tokens, so attention that uses it runs unmerged")
    return True


class MaskMerger(_Hooks):
    """Stands in for ``Attention.prepare_attention_mask``: a self-attention mask must merge with its tokens.

    Every attention processor hands its mask to that method. Paddle 2.6 shows hooks no keyword arguments, so it is
    where the mask can be met on every version.
    """

    NAME = "prepare_attention_mask"

    def __init__(self, run: RunState, attention: Any) -> None:
        super().__init__(run)
        self.attention = attention

    def __call__(
        self, mask: paddle.Tensor | None, target_length: int, *args: Any, **kwargs: Any
    ) -> paddle.Tensor | None:
        matching = self.run.matching
        if matching is not None and mask is not None and not _keeps_maps(self.run, ATTENTION, self.attention):
            own = mask.shape[-1] == matching.num_tokens
            if self.run.section is not None or isinstance(matching, Keys):
                mask = matching.merge_mask(mask) if own else mask
            elif own:
                # Attention on a picture meets its mask before its tokens merge.
                self.run.leave_block()
                self.run.warn_once("mask", "attention on a picture got a mask, so it runs unmerged")
            else:
                # The mask of a text whose keys stand before the picture's; those are never left out.
                seen = paddle.zeros([*mask.shape[:-1], matching.num_left], dtype=mask.dtype)
                mask = paddle.concat([mask, seen], axis=-1)
                target_length = mask.shape[-1]
        return type(self.attention).prepare_attention_mask(self.attention, mask, target_length, *args, **kwargs)


def attach(model: Any, sites: Iterable[Site], config: ToMeConfig) -> None:
    """Put ToMe on the given blocks of one denoiser; ``detach`` mirrors it."""
    timestep_layer = _timestep_layer(model)
    run = RunState(config, tells_timestep=timestep_layer is not None)
    if timestep_layer is not None:
        timestep_layer.register_forward_pre_hook(TimestepHooks(run).begin)
    elif is_a(model, "ModelMixin"):
        model.register_forward_pre_hook(TimestepHooks(run).begin_model)
    method = methods()[config.method]
    in_order = execution_order(sites)
    hosts = set()
    for number, site in enumerate(in_order):
        how = KEEP if method.combine is None else method.combine(number / max(1, len(in_order) - 1))
        if id(site.host) not in hosts:
            hosts.add(id(site.host))
            host_hooks = HostHooks(run, site)
            layer_at(site.host, site.adapter.picture).register_forward_pre_hook(host_hooks.enter)
            site.host.register_forward_post_hook(host_hooks.leave)
        block_hooks = BlockHooks(run)
        site.block.register_forward_pre_hook(block_hooks.enter)
        site.block.register_forward_post_hook(block_hooks.leave)
        if site.adapter.metric:
            layer_at(site.block, site.adapter.metric).register_forward_pre_hook(block_hooks.see)
        for role, section in site.sections(config):
            _attach_section(run, site.block, role, section, how, keys_only=method.keys_only)


def _attach_section(run: RunState, block: Any, role: str, section: Section, how: str, *, keys_only: bool) -> None:
    around = [layer_at(block, path) for path in (*section.enter, section.leave)]
    # A section is an attention layer, or within one (such as the block itself).
    parents = [layer_at(block, section.leave.rpartition(".")[0])]
    attention = next((layer for layer in (*around, *parents, block) if hasattr(layer, MaskMerger.NAME)), None)
    hooks = SectionHooks(run, role, attention, how, trailing=section.trailing)
    if keys_only:
        for path in section.keys:
            layer_at(block, path).register_forward_pre_hook(hooks.merge)
    else:
        for layer in around[:-1]:
            if section.after:
                layer.register_forward_post_hook(hooks.merge_output)
            else:
                layer.register_forward_pre_hook(hooks.merge)
        around[-1].register_forward_post_hook(hooks.unmerge)
    if role == ATTENTION and attention is not None:
        setattr(attention, MaskMerger.NAME, MaskMerger(run, attention))


def detach(model: Any) -> None:
    """Take off whatever ``attach`` put on a model or a part of one; harmless where nothing is attached."""
    for layer in model.sublayers(include_self=True):
        for hooks in (layer._forward_pre_hooks, layer._forward_post_hooks):
            for hook_id in [i for i, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), _Hooks)]:
                del hooks[hook_id]
        if isinstance(vars(layer).get(MaskMerger.NAME), MaskMerger):
            delattr(layer, MaskMerger.NAME)


def attached_blocks(model: Any) -> list[tuple[str, Any, BlockHooks]]:
    """Every block of a model that ToMe is attached to: its path, itself and its hooks."""
    return [
        (path, layer, hook.__self__)
        for path, layer in model.named_sublayers(include_self=True)
        for hook in layer._forward_pre_hooks.values()
        if isinstance(getattr(hook, "__self__", None), BlockHooks) and hook.__name__ == "enter"
    ]


def _timestep_layer(model: Any) -> Any | None:
    """The layer that embeds the timestep, called with it positionally in every UNet, ControlNet and transformer."""
    if hasattr(model, "time_proj"):
        return model.time_proj
    return next((layer for layer in model.sublayers() if is_a(layer, "Timesteps")), None)
