"""Attach ToMe to a model and take it off again.

ToMe before and after a sublayer needs only the sublayer's input and output and the block's input (what happens to them
is in ``merged_section.py``). So it is attached with Paddle's forward hooks and no ``forward`` is copied or replaced:
whatever norm, processor, LoRA or GLIGEN a block holds goes on as before.

Nothing is stored on the model but hooks and what stands in for one method (``MaskMerger``), each of a small object;
what is attached is found by looking at them. That is why a deep copy or a pickle of a model carries its own ToMe, and
why removing it from a part leaves the rest working.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import paddle

from ppdiffusers_tome.attachment import Attachment
from ppdiffusers_tome.blocks.adapter import ATTENTION, CROSS_ATTENTION, ROLES, Section
from ppdiffusers_tome.call import BlockCall, Call
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.grid import Layout
from ppdiffusers_tome.matching import Keys, Matching
from ppdiffusers_tome.merged_section import Given
from ppdiffusers_tome.methods import methods
from ppdiffusers_tome.methods.method import KEEP
from ppdiffusers_tome.paddle_calls import RunningCall, after, before, keywords_of, remove_hooks
from ppdiffusers_tome.recomputation import note, noted
from ppdiffusers_tome.sites import Site, execution_order, is_a, layer_at


class _Hooks:
    """The hooks on one layer, block or host; ``run`` is shared by all of one denoiser."""

    def __init__(self, run: Attachment) -> None:
        self.run = run

    def _call_around(self, layer: Any) -> Call | None:
        """The call that a layer belongs to which is about to run, maybe once more; None where it is called alone."""
        self.run.drop_failed(self, layer)
        call = self.run.call()
        if call is not None:
            if call.in_a_graph:
                note(self.run, call)
            return call
        call = noted(self.run)
        if call is not None:
            self.run.begin(self, layer, call)
        return call


# What denoisers call the argument that is their timestep.
_TIMESTEPS = ("timestep", "timesteps", "t", "r")


class DenoiserHooks(_Hooks):
    """On the denoiser itself, or the part of a model that ToMe is applied to: a call begins and ends.

    Args:
        run: the state of the denoiser.
        parameters: of its ``forward``, by position.
        tells: whether it tells its timestep itself, as it has no layer that embeds it.
    """

    def __init__(self, run: Attachment, parameters: Sequence[str], *, tells: bool) -> None:
        super().__init__(run)
        self.parameters, self.tells = parameters, tells

    def begin(self, model: Any, inputs: tuple, keywords: Mapping[str, Any] | None = None) -> None:
        again = noted(self.run, next_one=True)
        if again is not None:
            self.run.begin(self, model, again)
            return
        given = {**dict(zip(self.parameters, inputs, strict=False)), **keywords_of(keywords)}
        latents = given.pop(self.parameters[0], None)
        timesteps = [given.pop(name) for name in _TIMESTEPS if name in given]
        call = Call(
            self.run,
            latents=tuple(latents.shape) if isinstance(latents, paddle.Tensor) else (),
            conditioning=list(_conditioning(given)) if self.run.config.reuse_steps > 1 else (),
            training=model.training,
        )
        self.run.begin(self, model, call)
        note(self.run, call)
        if self.tells and timesteps:
            timestep = timesteps[0]
            if isinstance(timestep, (int, float)):
                timestep = paddle.to_tensor([timestep])
            if isinstance(timestep, paddle.Tensor) and timestep.ndim <= 1:
                call.tell_timestep(timestep)

    def end(self, model: Any, inputs: tuple, output: Any) -> None:
        self.run.end(self, failed=output is None)


class TimestepHooks(_Hooks):
    """On the layer that embeds the timestep, called with it."""

    def __init__(self, run: Attachment, model: Any) -> None:
        super().__init__(run)
        self.model = model

    def tell(self, layer: Any, inputs: tuple) -> None:
        # While a program is recorded, and where a user calls it so, a model's ``forward`` runs without its hooks: its
        # call then begins here, and nobody says that it ends.
        self.run.end(self)
        call = self.run.call()
        if call is None and RunningCall(self.model).runs:
            call = Call(self.run, training=self.model.training)
            self.run.begin(self, self.model, call)
        if call is not None and inputs:
            call.tell_timestep(inputs[0])


class HostHooks(_Hooks):
    """On the layer around the blocks, and on the one that sees the picture and so its grid, exact at any shape."""

    def __init__(self, run: Attachment, site: Site) -> None:
        super().__init__(run)
        self.host, self.level = site.host, site.level
        self.grid, self.prefix = site.adapter.grid, site.adapter.prefix(site.host)

    def enter(self, layer: Any, inputs: tuple) -> None:
        call = self._call_around(self.host)
        if call is None and self.run.others_call():
            return  # of a layer that two denoisers hold, and this one is not called
        if call is None:  # a part of a model, called alone
            call = Call(self.run)
            self.run.begin(self, self.host, call)
        if not inputs:
            _unseen(self.run, layer)
            call.layout = None
            return
        call.see_picture(Layout(self.grid(self.host, inputs[0]), self.prefix, self.level))

    def leave(self, host: Any, inputs: tuple, output: Any) -> None:
        call = self.run.call()
        if call is not None:
            call.layout = None
        self.run.end(self, failed=output is None)


class BlockHooks(_Hooks):
    """On one block, and on the layer that sees its tokens first where that is another."""

    def enter(self, block: Any, inputs: tuple) -> None:
        call = self._call_around(block)
        if call is not None:
            call.enter_block(self, block, inputs[0] if inputs else None)

    def see(self, layer: Any, inputs: tuple) -> None:
        block = self.run.block()
        if block is not None and not block.matched:
            block.tokens = inputs[0]

    def leave(self, layer: Any, inputs: tuple, output: Any) -> None:
        block = self.run.block()
        if block is not None and block.name is self:
            if not block.matched:
                self.run.warn_once(
                    "unasked",
                    f"{type(layer).__name__} did not call the layers at which its tokens merge (an attention processor "
                    "of your own may make keys by other layers), so it runs unmerged; method='tome' needs no such "
                    "layers",
                )
            block.call.block = None
        self.run.end(self)


class SectionHooks(_Hooks):
    """On the layers where a section of a block begins and ends.

    Args:
        run: the state of the denoiser.
        role: what the section does, one of ``ROLES``.
        attention: the layer of the section that has an attention processor, or None.
        how: as in ``Matching.merge``.
        trailing: as in ``Section``.
    """

    def __init__(self, run: Attachment, role: str, attention: Any, how: str, *, trailing: bool) -> None:
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
        block = self.run.block()
        section = None if block is None else block.closed(self)
        if section is None:
            return None
        if isinstance(output, tuple):
            return (section.send(Given(output[0], leaves=True)), *output[1:])
        return section.send(Given(output, leaves=True))

    def _merged(self, layer: Any, x: paddle.Tensor) -> paddle.Tensor | None:
        """What goes on in place of ``x``; None when it stays."""
        block = self.run.block()
        matching = None if block is None else block.match()
        if block is None or matching is None or _keeps_maps(self.run, self.role, self.attention):
            return None
        if matching.fits(x) or (self.trailing and x.shape[1] > matching.num_tokens):
            return block.opened(self, self.how).send(Given(x))
        if block.section is not None and block.section[0] is self:
            return None  # a processor's keys may come from elsewhere; its queries are merged already
        block.run_unmerged()
        self.run.warn_once(
            "sublayer",
            f"{type(layer).__name__} got tokens of shape {list(x.shape)} instead of "
            f"[{matching.batch}, {matching.num_tokens}, channels] (feed-forward chunking does that), so it runs "
            "unmerged; switch chunking off to merge here",
        )
        return None


def _conditioning(given: Any) -> Iterator[paddle.Tensor]:
    """The tensors of a call's arguments that say what is drawn: the text, class labels and the like.

    Not those with height and width: a ControlNet's residuals are others in every step.
    """
    if isinstance(given, paddle.Tensor) and given.ndim <= 3:
        yield given
    elif isinstance(given, Mapping):
        for value in given.values():
            yield from _conditioning(value)
    elif isinstance(given, (list, tuple)):
        for value in given:
            yield from _conditioning(value)


def _unseen(run: Attachment, layer: Any) -> None:
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


def _keeps_maps(run: Attachment, role: str, attention: Any) -> bool:
    """True where the attention of a section keeps its maps."""
    processor = getattr(attention, "processor", None)
    keepers = [name for name, roles in _KEEPERS_OF_MAPS.items() if role in roles and is_a(processor, name)]
    if not keepers:
        return False
    name = type(processor).__name__
    run.warn_once("maps", f"{name} keeps attention maps of all tokens, so attention that uses it runs unmerged")
    return True


class MaskMerger(_Hooks):
    """Stands in for ``Attention.prepare_attention_mask``: a self-attention mask must merge with its tokens.

    Every attention processor hands its mask to that method. Paddle 2.6 shows hooks no keyword arguments, so it is
    where the mask can be met on every version.

    Args:
        run: the state of the denoiser.
        attention: the layer.
    """

    NAME = "prepare_attention_mask"

    def __init__(self, run: Attachment, attention: Any) -> None:
        super().__init__(run)
        self.attention = attention
        # A user may have put one of their own on the layer: it is called, and put back by ``remove``.
        self.own = vars(attention).get(self.NAME)

    def put(self) -> None:
        setattr(self.attention, self.NAME, self)

    def remove(self) -> None:
        if self.own is None:
            delattr(self.attention, self.NAME)
        else:
            setattr(self.attention, self.NAME, self.own)

    def __call__(
        self, mask: paddle.Tensor | None, target_length: int, *args: Any, **kwargs: Any
    ) -> paddle.Tensor | None:
        block = None if mask is None else self.run.block()
        matching = None if block is None else block.match()
        keeps_maps = matching is not None and _keeps_maps(self.run, ATTENTION, self.attention)
        if mask is not None and block is not None and matching is not None and not keeps_maps:
            mask, target_length = self._merged(mask, target_length, block, matching)
        if self.own is not None:
            return self.own(mask, target_length, *args, **kwargs)
        return type(self.attention).prepare_attention_mask(self.attention, mask, target_length, *args, **kwargs)

    def _merged(
        self, mask: paddle.Tensor, target_length: int, block: BlockCall, matching: Matching | Keys
    ) -> tuple[paddle.Tensor, int]:
        own = mask.shape[-1] == matching.num_tokens
        if isinstance(matching, Keys):
            # Its keys are chosen later on, so the processor counts all tokens.
            return (matching.merge_mask(mask), matching.num_left) if own else (mask, target_length)
        if block.section is not None:
            return (matching.merge_mask(mask) if own else mask), target_length
        if own:
            # Attention on a picture meets its mask before its tokens merge.
            block.run_unmerged()
            self.run.warn_once("mask", "attention on a picture got a mask, so it runs unmerged")
            return mask, target_length
        # The mask of a text whose keys stand before the picture's; those are never left out.
        seen = paddle.zeros([*mask.shape[:-1], matching.num_left], dtype=mask.dtype)
        return paddle.concat([mask, seen], axis=-1), mask.shape[-1] + matching.num_left


def attach(model: Any, sites: Iterable[Site], config: ToMeConfig) -> None:
    """Put ToMe on the given blocks of one denoiser; ``detach`` mirrors it."""
    in_order = execution_order(sites)
    run = Attachment(config, noisiest=in_order[0].adapter.noisiest)
    timestep_layer = _timestep_layer(model)
    parameters = tuple(inspect.signature(type(model).forward).parameters)[1:]
    denoiser_hooks = DenoiserHooks(run, parameters, tells=timestep_layer is None and is_a(model, "ModelMixin"))
    before(model, denoiser_hooks.begin, with_keywords=True)
    if timestep_layer is not None:
        before(timestep_layer, TimestepHooks(run, model).tell)
    method = methods()[config.method]
    hosts: dict[int, HostHooks] = {}
    for number, site in enumerate(in_order):
        how = KEEP if method.combine is None else method.combine(number / max(1, len(in_order) - 1))
        if id(site.host) not in hosts:
            hosts[id(site.host)] = host_hooks = HostHooks(run, site)
            before(layer_at(site.host, site.adapter.picture), host_hooks.enter)
        block_hooks = BlockHooks(run)
        before(site.block, block_hooks.enter)
        after(site.block, block_hooks.leave)
        if site.adapter.metric:
            before(layer_at(site.block, site.adapter.metric), block_hooks.see)
        for role, section in site.sections(config):
            _attach_section(run, site.block, role, section, how, keys_only=method.keys_only)
    # What begins first ends last, also where one layer is a block, its host and the denoiser.
    for host_hooks in hosts.values():
        after(host_hooks.host, host_hooks.leave, always=True)
    after(model, denoiser_hooks.end, always=True)


def _attach_section(
    run: Attachment, block: Any, role: str, section: Section, how: str, *, keys_only: bool
) -> None:
    around = [layer_at(block, path) for path in (*section.enter, section.leave)]
    # A section is an attention layer, or within one (such as the block itself).
    parents = [layer_at(block, section.leave.rpartition(".")[0])]
    attention = next((layer for layer in (*around, *parents, block) if hasattr(layer, MaskMerger.NAME)), None)
    hooks = SectionHooks(run, role, attention, how, trailing=section.trailing)
    if keys_only:
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
        MaskMerger(run, attention).put()


def detach(model: Any) -> None:
    """Take off whatever ``attach`` put on a model or a part of one; harmless where nothing is attached."""
    for layer in model.sublayers(include_self=True):
        remove_hooks(layer, lambda hook: isinstance(getattr(hook, "__self__", None), _Hooks))
        while isinstance(merger := vars(layer).get(MaskMerger.NAME), MaskMerger):
            merger.remove()  # a layer that two denoisers hold has one of each


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
