"""One call of a merge point, which reduces tokens and restores them."""

from dataclasses import dataclass, field
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.rotary import Rotation
from ppdiffusers_tome.merging.token_span import TokenSpan
from ppdiffusers_tome.patching.adapters.adapter import MergePoint
from ppdiffusers_tome.patching.state.block_call import BlockCall


class UnmergeableError(Exception):
    """A merge point whose layer must run on all tokens, for this reason."""


@dataclass(eq=False)
class PointCall:
    """One call of a merge point, which runs on fewer tokens."""

    block_call: BlockCall
    reduction: TokenReduction  # of the block's tokens
    point: MergePoint
    rotations: dict[str, Rotation] = field(default_factory=dict)  # of the output of each norm, by the norm's name
    # Names of the layers of attention without which its result would be wrong, until each has run.
    awaited: set[str] = field(default_factory=set)
    has_reduced: bool = False  # True once a projection ran on reduced tokens
    projected: paddle.Tensor | None = None  # the last tokens of a projection, as the next may get the same tensor
    reduced: paddle.Tensor | None = None  # what they were reduced to

    def require_fit(self, layer: Layer, tokens: paddle.Tensor | None) -> None:
        """Raise an ``UnmergeableError`` where a layer's tokens cannot be reduced."""
        batch, num_tokens = self.reduction.batch, self.reduction.num_tokens
        shape = [] if tokens is None else list(tokens.shape)
        is_batch = len(shape) == 3 and (shape[0] == batch or -1 in (shape[0], batch))
        if not is_batch or (shape[1] != num_tokens and not (self.point.text and shape[1] > num_tokens)):
            raise UnmergeableError(
                f"{type(layer).__name__} got tokens of shape {shape} instead of [{batch}, {num_tokens}, channels], so "
                "it runs unmerged: feed-forward chunking, tiles around attention (HyperTile) and attention processors "
                "that put other tokens beside them do that"
            )

    def reduce(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Reduce the image's tokens of ``[batch, tokens, channels]``."""
        reduction, point = self.reduction, self.point
        if not point.text:
            return reduction.reduce(tokens)
        image, text = TokenSpan(reduction.num_tokens, point.text_first).split(tokens)
        return TokenSpan(reduction.num_left, point.text_first).join(reduction.reduce(image), text)

    def restore(self, output: Any) -> Any:
        """Restore the image's tokens in a layer's first or only output."""
        if isinstance(output, (tuple, list)):
            restored = [self.restore(output[0]), *output[1:]]
            return restored if isinstance(output, list) else tuple(restored)
        reduction, point = self.reduction, self.point
        num_text = output.shape[1] - reduction.num_left
        if num_text < 0 or (num_text > 0 and not point.text):
            return output  # not of merged tokens: a function of the user may replace the output
        if num_text == 0:
            return reduction.restore(output)
        image, text = TokenSpan(reduction.num_left, point.text_first).split(output)
        return TokenSpan(reduction.num_tokens, point.text_first).join(reduction.restore(image), text)
