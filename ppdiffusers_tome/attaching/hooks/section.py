"""Hooks where a section of a block begins and ends: tokens merge, and are unmerged."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.attaching.adapters.adapter import CROSS_ATTENTION, ROLES
from ppdiffusers_tome.attaching.calls.attachment import Attachment
from ppdiffusers_tome.attaching.hooks.base import Hooks, unseen
from ppdiffusers_tome.attaching.layers import is_a
from ppdiffusers_tome.merging.section import Given


class SectionHooks(Hooks):
    """On the layers where a section of a block begins and ends.

    Args:
        attachment: of the denoiser.
        role: what the section does, one of ``ROLES``.
        attention: the layer of the section that has an attention processor, or None.
        how: as in ``Matching.merge``.
        trailing: as in ``Section``.
    """

    def __init__(self, attachment: Attachment, role: str, attention: Layer | None, how: str, *, trailing: bool) -> None:
        super().__init__(attachment)
        self.role = role
        self.attention = attention
        self.how = how
        self.trailing = trailing

    def merge(self, layer: Layer, inputs: tuple) -> tuple | None:
        if not inputs:
            unseen(self.attachment, layer)
            return None
        merged = self._merged(layer, inputs[0])
        return None if merged is None else (merged, *inputs[1:])

    def merge_output(self, layer: Layer, inputs: tuple, output: Any) -> Any:
        several = isinstance(output, tuple)
        merged = self._merged(layer, output[0] if several else output)
        if merged is None:
            return None
        return (merged, *output[1:]) if several else merged

    def unmerge(self, layer: Layer, inputs: tuple, output: Any) -> Any:
        block = self.attachment.block()
        section = None if block is None else block.closed(self)
        if section is None:
            return None
        if isinstance(output, tuple):
            return (section.send(Given(output[0], leaves=True)), *output[1:])
        return section.send(Given(output, leaves=True))

    def _merged(self, layer: Layer, x: paddle.Tensor) -> paddle.Tensor | None:
        """What goes on in place of ``x``; None when it stays."""
        block = self.attachment.block()
        matching = None if block is None else block.match()
        if block is None or matching is None or keeps_maps(self.attachment, self.role, self.attention):
            return None
        if matching.fits(x) or (self.trailing and x.shape[1] > matching.num_tokens):
            return block.opened(self, self.how).send(Given(x))
        if block.section is not None and block.section[0] is self:
            return None  # a processor's keys may come from elsewhere; its queries are merged already
        block.run_unmerged()
        self.attachment.warn_once(
            "sublayer",
            f"{type(layer).__name__} got tokens of shape {list(x.shape)} instead of "
            f"[{matching.batch}, {matching.num_tokens}, channels] (feed-forward chunking does that), so it runs "
            "unmerged; switch chunking off to merge here",
        )
        return None


# Processors that keep attention maps for their pipelines to read as pictures, and the attention whose maps are kept:
# Self-Attention Guidance, Attend-and-Excite (which drops those of self-attention), Pix2Pix Zero. Maps of merged tokens
# would differ in size.
_KEEPERS_OF_MAPS = {
    "CrossAttnStoreProcessor": ROLES,
    "AttendExciteAttnProcessor": (CROSS_ATTENTION,),
    "Pix2PixZeroAttnProcessor": ROLES,
}


def keeps_maps(attachment: Attachment, role: str, attention: Layer | None) -> bool:
    """True where the attention of a section keeps its maps."""
    processor = getattr(attention, "processor", None)
    keepers = [name for name, roles in _KEEPERS_OF_MAPS.items() if role in roles and is_a(processor, name)]
    if not keepers:
        return False
    name = type(processor).__name__
    attachment.warn_once("maps", f"{name} keeps attention maps of all tokens, so attention that uses it runs unmerged")
    return True
