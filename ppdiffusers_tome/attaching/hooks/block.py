"""Hooks on blocks and on the layers around them: which grid of tokens, and which tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.attaching.calls.attachment import Attachment
from ppdiffusers_tome.attaching.calls.call import Call
from ppdiffusers_tome.attaching.hooks.base import Hooks, unseen
from ppdiffusers_tome.attaching.sites import Site
from ppdiffusers_tome.merging.grid import Layout

if TYPE_CHECKING:
    from paddle.nn import Layer


class HostHooks(Hooks):
    """On the layer around the blocks, and on the one that sees the latent and so its grid, exact at any shape."""

    def __init__(self, attachment: Attachment, site: Site) -> None:
        super().__init__(attachment)
        self.host, self.level = site.host, site.level
        self.grid, self.prefix = site.adapter.grid, site.adapter.prefix(site.host)

    def enter(self, layer: Layer, inputs: tuple) -> None:
        call = self._call_around(self.host)
        if call is None and self.attachment.others_call():
            return  # of a layer that two denoisers hold, and this one is not called
        if call is None:  # a part of a model, called alone
            call = Call(self.attachment)
            self.attachment.begin(self, self.host, call)
        if not inputs:
            unseen(self.attachment, layer)
            call.layout = None
            return
        call.see_latent(Layout(self.grid(self.host, inputs[0]), self.prefix, self.level))

    def leave(self, host: Layer, inputs: tuple, output: Any) -> None:
        call = self.attachment.call()
        if call is not None:
            call.layout = None
        self.attachment.end(self, failed=output is None)


class BlockHooks(Hooks):
    """On one block, and on the layer that sees its tokens first where that is another."""

    def enter(self, block: Layer, inputs: tuple) -> None:
        call = self._call_around(block)
        if call is not None:
            block_call = call.enter_block(self, block)
            if block_call is not None and inputs:
                block_call.tokens = inputs[0]

    def see(self, layer: Layer, inputs: tuple) -> None:
        block = self.attachment.block()
        if block is not None and not block.matched:
            block.tokens = inputs[0]

    def leave(self, layer: Layer, inputs: tuple, output: Any) -> None:
        block = self.attachment.block()
        if block is not None and block.name is self:
            if not block.matched:
                self.attachment.warn_once(
                    "unasked",
                    f"{type(layer).__name__} did not call the layers at which its tokens merge (an attention processor "
                    "of your own may make keys by other layers), so it runs unmerged; method='tome' needs no such "
                    "layers",
                )
            block.call.block = None
        self.attachment.end(self)
