"""The state of one call of a block or merge point."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import paddle

from ppdiffusers_tome.merging.chosen_keys import TokenReduction
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.merging.rotary import Rotation
from ppdiffusers_tome.merging.token_span import TokenSpan
from ppdiffusers_tome.patching.adapters.adapter import MergePoint
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall

# Called with every ``BlockCall`` in which tokens merged, of all denoisers.
WATCHERS: list[Callable[[BlockCall], None]] = []


class UnmergeableError(Exception):
    """A merge point whose layer must run on all tokens, for this reason."""


@dataclass(eq=False)
class BlockCall:
    """One call of a block.

    Attributes:
        call: of the denoiser.
        layer: the block.
        layout: of its tokens.
        tokens: its input, ``[batch, tokens, channels]`` or ``[batch, channels, (frames,) height, width]``; None once
            they are matched.
        reduction: of the block's tokens; None if the block runs unmerged, or has not been matched yet.
        has_merged: True once a merge point ran on fewer tokens.
    """

    call: DenoiserCall
    layer: Hashable
    layout: Layout
    tokens: paddle.Tensor | None = None
    reduction: TokenReduction | None = None
    has_merged: bool = False

    def match(self) -> TokenReduction | None:
        """Match the block's tokens at the first use and return their reduction.

        Not earlier, as a DiT embeds its timestep inside its first block.
        """
        if self.tokens is None:
            return self.reduction
        tokens, self.tokens = self.tokens, None
        grid, shape = self.layout.grid, list(tokens.shape)
        if tokens.ndim == 5:  # of a video each frame is by itself
            tokens = tokens.transpose([0, 2, 1, 3, 4]).flatten(0, 1)
        if tokens.ndim == 4 and shape[-2:] == [grid.height, grid.width]:
            tokens = tokens.flatten(2).transpose([0, 2, 1])
        if tokens.ndim == 3 and tokens.shape[1] == self.layout.num_tokens:
            self.reduction = self.call.find_reduction(self.layer, self.layout, tokens)
        else:
            prefix = f" behind {self.layout.prefix} others" if self.layout.prefix else ""
            self.call.state.warn_once(
                f"a block got tokens of shape {shape} where its latent has {grid} tokens{prefix}; it runs unmerged"
            )
        return self.reduction

    def count_merging(self) -> None:
        """Count the block as one whose tokens merged; tell ``WATCHERS`` once."""
        if not self.has_merged:
            self.has_merged = True
            for watch in WATCHERS:
                watch(self)


@dataclass(eq=False)
class PointCall:
    """One call of a merge point, which runs on fewer tokens.

    Attributes:
        block: the call of its block.
        reduction: of the block's tokens.
        merge_point: describes the layer.
        rotations: the rotary embedding of the output of each norm, by the norm's name.
        required: names of the layers of attention that have to run on fewer tokens, and ``ran`` of those that did.
        reduced: the last tokens of a projection and what they were reduced to, for the next that gets the same tensor.
    """

    block: BlockCall
    reduction: TokenReduction
    merge_point: MergePoint
    rotations: dict[str, Rotation] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    reduced: tuple[Any, Any] = (None, None)

    def reduce(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Reduce the image tokens of ``[batch, tokens, channels]``."""
        reduction, merge_point = self.reduction, self.merge_point
        if not merge_point.text:
            return reduction.reduce(tokens)
        image, text = TokenSpan(reduction.num_tokens, merge_point.text_first).split(tokens)
        return TokenSpan(reduction.num_left, merge_point.text_first).join(reduction.reduce(image), text)

    def restore(self, output: Any) -> Any:
        """Restore the image's tokens in a layer's first or only output."""
        if isinstance(output, (tuple, list)):
            restored = [self.restore(output[0]), *output[1:]]
            return restored if isinstance(output, list) else tuple(restored)
        reduction, merge_point = self.reduction, self.merge_point
        num_text = output.shape[1] - reduction.num_left
        if num_text < 0 or (num_text > 0 and not merge_point.text):
            return output  # not of merged tokens: a function of the user may replace the output
        if num_text == 0:
            return reduction.restore(output)
        image, text = TokenSpan(reduction.num_left, merge_point.text_first).split(output)
        return TokenSpan(reduction.num_tokens, merge_point.text_first).join(reduction.restore(image), text)
