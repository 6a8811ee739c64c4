"""Hooks where a section of a block begins and ends: tokens merge, and are unmerged."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.section import Given, unmerged
from ppdiffusers_tome.patching.adapters.adapter import CROSS_ATTENTION, ROLES, Section
from ppdiffusers_tome.patching.hooks.base import Hooks, unseen
from ppdiffusers_tome.patching.layers import is_a
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.state.calls import BlockCall, OpenSection
from ppdiffusers_tome.patching.step_caches import first_of, handed_out_again, matching_of, remember


class SectionHooks(Hooks):
    """On the layers where a section of a block begins and ends.

    Args:
        attachment: of the denoiser.
        role: what the section does, one of ``ROLES``.
        attention: the layer of the section that has an attention processor, or None.
        how: as in ``Matching.reduce``.
        section: which one.
    """

    def __init__(
        self, attachment: Attachment, role: str, attention: Layer | None, how: str, section: Section
    ) -> None:
        super().__init__(attachment)
        self.role = role
        self.attention = attention
        self.how = how
        self.section = section

    def merge(self, layer: Layer, inputs: tuple) -> tuple | None:
        if not inputs:
            unseen(self.attachment, layer)
            return None
        merged = self._merged(layer, inputs[0])
        return None if merged is None else (merged, *inputs[1:])

    def merge_output(self, layer: Layer, inputs: tuple, output: Any) -> Any:
        merged = self._merged(layer, first_of(output))
        return None if merged is None else _with_first(output, merged)

    def unmerge(self, layer: Layer, inputs: tuple, output: Any) -> Any:
        block = self.attachment.block()
        if block is None and self.attachment.call() is None and self.attachment.others_call():
            return None  # of a layer that two denoisers hold, and this one is not called
        section, tokens, whole = None if block is None else block.closed(self), first_of(output), None
        if not is_new(tokens, section):
            made_with = matching_of(tokens)
            if made_with is not None and not made_with.keeps_queries:
                whole = unmerged(made_with, tokens, text_first=self.section.text_first)
        elif block is None or section is None:
            remember(layer, tokens, None)
        else:
            remember(layer, tokens, block.matching)
            if block.matching is not None and not block.matching.keeps_queries:
                whole = section.arithmetic.send(Given(tokens, leaves=True))
        return None if whole is None else _with_first(output, whole)

    def _merged(self, layer: Layer, x: paddle.Tensor) -> paddle.Tensor | None:
        """What goes on in place of ``x``; None when it stays."""
        block = self.attachment.block()
        if block is None:
            return None
        block.asked = True
        matching = block.match()
        if matching is None or stores_attention_maps(self.attachment, self.role, self.attention):
            return None
        if matching.fits(x) or (self.section.others and x.shape[1] > matching.num_tokens):
            return self._opened(block).arithmetic.send(Given(x))
        if block.open_section(self) is not None:
            return None  # a processor's keys may come from elsewhere; its queries are merged already
        self._refuse(block, matching, layer, x)
        return None

    def _opened(self, block: BlockCall) -> OpenSection:
        return block.opened(self, self.how, text_first=self.section.text_first)

    def _refuse(self, block: BlockCall, matching: TokenReduction, layer: Layer, x: paddle.Tensor) -> None:
        block.run_unmerged()
        got = (
            f"{type(layer).__name__} got tokens of shape {list(x.shape)} instead of "
            f"[{matching.batch}, {matching.num_tokens}, channels]"
        )
        if matching.keeps_queries:
            why = " (an attention processor that puts other tokens beside them does that), so it runs unmerged"
        else:
            why = " (feed-forward chunking does that), so it runs unmerged; switch chunking off to merge here"
        self.attachment.warn_once("sublayer", got + why)


def is_new(tokens: Any, section: OpenSection | None) -> bool:
    """Whether a layer has just made what it returned, which a cache in it may have kept from an earlier step."""
    return (section is not None and bool(section.met)) or not handed_out_again(tokens)


def _with_first(output: Any, first: paddle.Tensor) -> Any:
    """What a layer returned, with another in place of what ``first_of`` finds."""
    if isinstance(output, list):
        return [first, *output[1:]]
    return (first, *output[1:]) if isinstance(output, tuple) else first


# Processors that keep attention maps for their pipelines to read as pictures, and the attention whose maps are kept:
# Self-Attention Guidance, Attend-and-Excite (which drops those of self-attention), Pix2Pix Zero. Maps of merged tokens
# would differ in size.
_KEEPERS_OF_MAPS = {
    "CrossAttnStoreProcessor": ROLES,
    "AttendExciteAttnProcessor": (CROSS_ATTENTION,),
    "Pix2PixZeroAttnProcessor": ROLES,
}


def stores_attention_maps(attachment: Attachment, role: str, attention: Layer | None) -> bool:
    """True where the attention of a section keeps its maps."""
    processor = getattr(attention, "processor", None)
    keepers = [name for name, roles in _KEEPERS_OF_MAPS.items() if role in roles and is_a(processor, name)]
    if not keepers:
        return False
    name = type(processor).__name__
    attachment.warn_once("maps", f"{name} keeps attention maps of all tokens, so attention that uses it runs unmerged")
    return True
