"""One call of a merge point: its tokens enter merged and leave unmerged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.token_span import TokenSpan
from ppdiffusers_tome.patching.adapters.adapter import PROJECTIONS, MergePoint

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer

    from ppdiffusers_tome.merging.reduction import TokenReduction
    from ppdiffusers_tome.merging.rotary import Rotation
    from ppdiffusers_tome.patching.state.calls import BlockCall


class PointCall:
    """A merge point of a block that runs on fewer tokens now.

    Attributes:
        combine: as in ``Matching.reduce``.
        required: names of the layers of attention without which the result is wrong.
        ran: names of those that ran.
        rotations: the rotary embedding of the output of each norm, by the norm's name.
    """

    def __init__(self, block: BlockCall, reduction: TokenReduction, point: MergePoint, combine: str) -> None:
        self.block, self.reduction, self.point, self.combine = block, reduction, point, combine
        self.required = {"to_k"} if reduction.keeps_queries and point.has_key_layers else set()
        self.ran: set[str] = set()
        self.rotations: dict[str, Rotation] = {}
        # The last reduced tensor and the result, for the next layer that gets the same tensor.
        self._reduced: tuple[Any, Any] = (None, None)

    def find_misfit(self, layer: Layer, tokens: paddle.Tensor) -> str:
        """Return why tokens of a layer cannot be reduced, or ""."""
        reduction = self.reduction
        if reduction.fits(tokens) or (self.point.text and tokens.ndim == 3 and tokens.shape[1] > reduction.num_tokens):
            return ""
        if reduction.keeps_queries:
            why = "an attention processor that puts other tokens beside them does that), so it runs unmerged"
        else:
            why = "feed-forward chunking does that), so it runs unmerged; switch chunking off to merge here"
        return (
            f"{type(layer).__name__} got tokens of shape {list(tokens.shape)} instead of "
            f"[{reduction.batch}, {reduction.num_tokens}, channels] ({why}"
        )

    def reduce(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Merge the image tokens of ``[batch, tokens, channels]``."""
        if not self.point.text:
            return self.reduction.reduce(tokens, self.combine)
        image, text = TokenSpan(self.reduction.num_tokens, self.point.text_first).split(tokens)
        span = TokenSpan(self.reduction.num_left, self.point.text_first)
        return span.join(self.reduction.reduce(image, self.combine), text)

    def restore(self, output: Any) -> Any:
        """Unmerge the image tokens of a layer's output, or of the first of several."""
        if isinstance(output, (tuple, list)):
            restored = (self.restore(output[0]), *output[1:])
            return list(restored) if isinstance(output, list) else restored
        reduction = self.reduction
        num_text = output.shape[1] - reduction.num_left
        if num_text < 0 or (num_text > 0 and not self.point.text):
            return output  # not of merged tokens: a function of the user may replace the output
        if num_text == 0:
            return reduction.restore(output)
        image, text = TokenSpan(reduction.num_left, self.point.text_first).split(output)
        return TokenSpan(reduction.num_tokens, self.point.text_first).join(reduction.restore(image), text)

    def enter(self, layer: Layer, name: str, tokens: paddle.Tensor) -> paddle.Tensor:
        """Reduce the tokens of a projection, once for all that get the same tensor."""
        self.ran.add(name)
        if self._reduced[0] is not tokens:
            misfit = self.find_misfit(layer, tokens)
            if misfit:
                self.block.run_unmerged("sublayer", misfit)
                return tokens
            self._reduced = tokens, self.reduce(tokens)
        reduced = self._reduced[1]
        if name == PROJECTIONS[-1]:
            self._reduced = (None, None)  # attention needs the memory
        return reduced

    def rotate(self, name: str, x: paddle.Tensor, num_heads: int) -> paddle.Tensor:
        """Apply the rotary embedding to a norm's output, in the processor's layout."""
        self.ran.add(name)
        rotation, text_first = self.rotations[name], self.point.text_first
        if x.ndim == 3:  # [batch, tokens, heads * channels]
            return self.rotate(name, x.reshape([0, 0, num_heads, -1]), num_heads).flatten(2)
        if x.shape[1] == x.shape[2] == num_heads:
            self.block.run_unmerged(
                "layout",
                f"attention on {num_heads} tokens has {num_heads} heads, so the axis of its tokens is unknown, and it "
                "runs unmerged",
            )
            return x
        if x.shape[1] != num_heads:  # [batch, tokens, heads, channels], as Paddle's own attention takes them
            return rotation.rotate(x.transpose([0, 2, 1, 3]), text_first=text_first).transpose([0, 2, 1, 3])
        return rotation.rotate(x, text_first=text_first)
