"""Hooks on blocks and on the layers around them: which grid of tokens, and which tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.blocks import MergeableBlock
from ppdiffusers_tome.patching.hooks.base import Hooks, unseen
from ppdiffusers_tome.patching.paddle_compat import arguments, keywords_of
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.state.calls import Call, require_eager

if TYPE_CHECKING:
    from paddle.nn import Layer


class HostHooks(Hooks):
    """On the layer around the blocks, and on the one that sees the latent and so its grid, exact at any shape."""

    def __init__(self, attachment: Attachment, site: MergeableBlock) -> None:
        super().__init__(attachment)
        self.host, self.level = site.host, site.level
        # Not the adapter itself: a model with ToMe can be pickled.
        self.grid, self.prefix = site.adapter.grid, site.adapter.prefix
        self.given, self.by_value = site.adapter.given, site.adapter.by_value

    def enter(self, layer: Layer, inputs: tuple, keywords: Mapping[str, Any] | None = None) -> None:
        call = self._call_around(self.host)
        if call is None and self.attachment.others_call():
            return  # of a layer that two denoisers hold, and this one is not called
        if call is None:  # a part of a model, called alone
            call = Call(self.attachment)
            self.attachment.begin(self, self.host, call)
        call.layouts.pop(self, None)
        given = arguments(layer, inputs, keywords_of(keywords), self.given)
        if given is None:
            unseen(self.attachment, layer)
            return
        grid = self._read_once(given) if self.by_value else self.grid(self.host, *given)
        if grid is not None:
            call.see_latent(self, Layout(grid, self.prefix(self.host, *given), self.level))
            return
        self.attachment.warn_once(
            "grid",
            f"{' and '.join(map(str, self.given))} of {type(self.host).__name__} do not describe a grid of tokens, row "
            "by row, so it runs unmerged",
        )

    def leave(self, host: Layer, inputs: tuple, output: Any) -> None:
        call = self.attachment.call()
        if call is not None:
            call.layouts.pop(self, None)
        self.attachment.end(self, failed=output is None)

    def _read_once(self, given: Sequence[Any]) -> Grid | None:
        """The grid that values tell, which a pipeline hands on unchanged from step to step."""
        require_eager(f"a grid given by the values of {' and '.join(map(str, self.given))}", "remove_tome")
        # The same for all blocks of a host, whatever stands before their grid.
        name, kept = (self.grid, id(self.host)), self.attachment.denoising().grids
        versions = [tensor.inplace_version for tensor in given]
        before = kept.get(name)
        if before is None or before[1] != versions or any(a is not b for a, b in zip(before[0], given, strict=True)):
            kept[name] = given, versions, self.grid(self.host, *given)
        return kept[name][2]


class BlockHooks(Hooks):
    """On one block, and on the layer that sees its tokens first where that is another.

    Args:
        attachment: of the denoiser.
        host: the hooks that tell the block's layout.
    """

    def __init__(self, attachment: Attachment, host: HostHooks) -> None:
        super().__init__(attachment)
        self.host = host

    def enter(self, block: Layer, inputs: tuple) -> None:
        call = self._call_around(block)
        if call is not None:
            block_call = call.enter_block(self, block, self.host)
            if block_call is not None and inputs:
                block_call.tokens = inputs[0]

    def see(self, layer: Layer, inputs: tuple) -> None:
        block = self.attachment.block()
        if block is None or block.matched:
            return
        if inputs:
            block.tokens = inputs[0]
        else:
            unseen(self.attachment, layer)

    def leave(self, layer: Layer, inputs: tuple, output: Any) -> None:
        block = self.attachment.block()
        if block is not None and block.name is self:
            if not block.matched and block.tokens is None:
                unseen(self.attachment, layer)
            elif block.lacks_keys and METHODS[self.attachment.config.method].keeps_queries:
                self.attachment.warn_once(
                    "unasked",
                    f"{type(layer).__name__} did not call the layers at which its tokens merge (an attention processor "
                    "of your own may make keys by other layers, or a cache of steps may have left attention out), so "
                    "it runs unmerged; method='tome' needs no such layers",
                )
            block.call.block = None
        self.attachment.end(self)
