"""Overrides that merge and unmerge tokens: ``unmerge(attention(merge(norm(x)))) + x``.

The block's own layers compute ``norm`` and ``attention`` and add ``x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.masks import add_group_size_bias, reduce_key_mask
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.rotary import RotaryEmbedding, count_positions
from ppdiffusers_tome.merging.token_span import TokenSpan
from ppdiffusers_tome.patching.adapters.adapter import CROSS_ATTENTION, ROLES, MergePoint
from ppdiffusers_tome.patching.layers import is_a
from ppdiffusers_tome.patching.overrides.block import first_argument, replace_first_argument
from ppdiffusers_tome.patching.overrides.method import ForwardOverride
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.state.calls import ActivePoint, BlockCall, DenoiserCall
from ppdiffusers_tome.patching.step_caches import first_output, replace_first_output

# Norms of the image and of the text, to whose outputs the rotary embedding is applied.
NORMS, TEXT_NORMS = ("norm_q", "norm_k"), ("norm_added_q", "norm_added_k")

# Processors that store attention maps, which their pipelines read as images, and the roles of that attention:
# Self-Attention Guidance, Attend-and-Excite (which drops those of self-attention), Pix2Pix Zero. Maps of merged tokens
# would differ in size.
_MAP_STORING = {
    "CrossAttnStoreProcessor": ROLES,
    "AttendExciteAttnProcessor": (CROSS_ATTENTION,),
    "Pix2PixZeroAttnProcessor": ROLES,
}


class PointForward(ForwardOverride):
    """The override of the attention or feed-forward layer of a merge point.

    ``combine`` is as in ``Matching.reduce``.
    """

    def __init__(self, attachment: Attachment, layer: Layer, point: MergePoint, role: str, combine: str) -> None:
        super().__init__(attachment, layer)
        self.point, self.role, self.combine = point, role, combine
        # The type of a processor known to bypass required layers.
        self.bypassing: type | None = None

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Merge the tokens, run the layer, unmerge its result."""
        block = call.block
        reduction = None if block is None or block.active is not None else block.match()
        if block is None or reduction is None or not self._can_run(block, reduction, args, kwargs):
            return self.call_original(*args, **kwargs)
        tokens = first_argument(self.layer, args, kwargs)
        block.active = active = ActivePoint(self.point)
        try:
            keywords = self._reduce_keywords(active, reduction, kwargs, tokens.dtype)
            if reduction.keeps_queries or not self.point.is_one_layer:
                output = self.call_original(*args, **keywords)
            else:
                merged = _reduce(reduction, self.point, tokens, self.combine)
                inputs, keywords = replace_first_argument(self.layer, args, keywords, merged)
                del merged
                output = _restore(reduction, self.point, self.call_original(*inputs, **keywords))
        finally:
            block.active = None
        if not active.missing and (block.reduction is not None or not active.ran):
            return output
        # Too late to merge: the result has other keys, or lacks its positions.
        if active.missing:
            self.bypassing = type(self._processor)
            self._log_bypass(active.missing)
        return self.call_original(*args, **kwargs)

    @property
    def _processor(self) -> Any:
        return getattr(self.layer, "processor", None)

    def _can_run(
        self, block: BlockCall, reduction: TokenReduction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Return whether all arguments can be reduced; otherwise log the reason."""
        warn_once, name = self.attachment.warn_once, type(self.layer).__name__
        if type(self._processor) is self.bypassing or stores_attention_maps(self.attachment, self.role, self.layer):
            return False  # that was logged
        tokens = first_argument(self.layer, args, kwargs)
        if tokens is None:
            warn_once("arguments", f"{name} was called without its first argument, so it runs unmerged")
            return False
        if self.point.is_one_layer and not _fits(reduction, self.point, tokens):
            _refuse(block, reduction, self.layer, tokens)
            return False
        if self._has_foreign_keys(reduction, kwargs):
            warn_once("keys", f"{name} got keys of other tokens than its block's, so it runs unmerged")
            return False
        if self.role == CROSS_ATTENTION:
            rows = [
                key for key, value in kwargs.items()
                if key != "encoder_hidden_states" and value is not tokens and _has_rows(value, reduction)
            ]  # fmt: skip
            if rows:
                warn_once("rows", f"{name} got {', '.join(rows)} with a row for each token, so it runs unmerged")
                return False
        embedding, mask = self._keyword(self.point.rotary, kwargs), self._keyword(self.point.mask, kwargs)
        absent = {norm for norm in NORMS if getattr(self.layer, norm, None) is None}
        if embedding is not None and absent:
            self._log_bypass(absent)
        elif embedding is not None and count_positions(embedding) < reduction.num_tokens:
            warn_once(
                "rotary rows",
                f"attention on {reduction.num_tokens} tokens got a rotary embedding of {count_positions(embedding)}, "
                "so it runs unmerged",
            )
        elif mask is not None and not (mask.ndim == 4 and mask.shape[2] == 1):
            warn_once(
                "mask",
                f"attention got a mask of shape {list(mask.shape)}, not one for its keys alone, so it runs unmerged",
            )
        else:
            return True
        return False

    def _has_foreign_keys(self, reduction: TokenReduction, kwargs: Mapping[str, Any]) -> bool:
        """Return whether keys come from other tokens, as a reference image's."""
        context = kwargs.get("encoder_hidden_states")
        return bool(
            reduction.keeps_queries and self.point.is_one_layer and self.point.has_prepared_mask and context is not None
            and context.shape[1] != reduction.num_tokens
        )  # fmt: skip

    def _reduce_keywords(
        self, active: ActivePoint, reduction: TokenReduction, kwargs: Mapping[str, Any], dtype: Any
    ) -> dict[str, Any]:
        """Return the keywords for fewer tokens, and note the layers they require."""
        changed = dict(kwargs)
        if reduction.keeps_queries:
            active.required.update(path.rpartition(".")[2] for path in self.point.keys[:1])
        if self._keyword(self.point.rotary, kwargs) is not None:
            rotary = RotaryEmbedding(changed.pop(self.point.rotary), reduction.num_tokens)
            keys = rotary.rotation_at(reduction.positions)
            active.rotations = {"norm_q": rotary.grid_rotation if reduction.keeps_queries else keys, "norm_k": keys}
            if rotary.num_text:
                active.rotations |= dict.fromkeys(TEXT_NORMS, rotary.text_rotation)
            active.required.update(active.rotations)
        if self.point.mask:
            mask, text_first = kwargs.get(self.point.mask), self.point.text_first
            if mask is not None:
                mask = reduce_key_mask(mask, reduction, text_first=text_first)
            if self.attachment.config.uses_group_sizes:
                text = kwargs.get("encoder_hidden_states")
                num_text = 0 if text is None else text.shape[1]
                mask = add_group_size_bias(mask, reduction, num_text, dtype, text_first=text_first)
            if mask is not None:
                changed[self.point.mask] = mask
        return changed

    def _keyword(self, name: str, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(name) if name else None

    def _log_bypass(self, missing: set[str]) -> None:
        why = "reduces keys" if "to_k" in missing else "rotates merged tokens by their positions"
        self.attachment.warn_once(
            "bypass",
            f"attention with {type(self._processor).__name__} does not call {', '.join(sorted(missing))}, where ToMe "
            f"{why}, so it runs unmerged; method='tome' needs no such layer where positions are not rotary",
        )


class EnterForward(ForwardOverride):
    """The override of a projection to queries, keys or values.

    ``is_last`` is True for the last layer of the point that gets the same tokens.
    """

    follows_wrappers = True

    def __init__(
        self, attachment: Attachment, layer: Layer, point: MergePoint, combine: str, *, name: str, is_last: bool
    ) -> None:
        super().__init__(attachment, layer)
        self.point, self.combine, self.name, self.is_last = point, combine, name, is_last

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Reduce the tokens, once for all layers that get the same tensor."""
        active = active_point(call, self.point)
        block, tokens = call.block, first_argument(self.layer, args, kwargs)
        if active is None or block is None or block.reduction is None:
            return self.call_original(*args, **kwargs)
        active.ran.add(self.name)
        if active.reduced is None or active.reduced[0] is not tokens:
            if not _fits(block.reduction, self.point, tokens):
                _refuse(block, block.reduction, self.layer, tokens)
                return self.call_original(*args, **kwargs)
            active.reduced = tokens, _reduce(block.reduction, self.point, tokens, self.combine)
        reduced = active.reduced[1]
        if self.is_last:
            active.reduced = None  # attention needs the memory
        args, kwargs = replace_first_argument(self.layer, args, kwargs, reduced)
        return self.call_original(*args, **kwargs)


class LeaveForward(ForwardOverride):
    """The override of the last layer of attention: it unmerges."""

    follows_wrappers = True

    def __init__(self, attachment: Attachment, layer: Layer, point: MergePoint) -> None:
        super().__init__(attachment, layer)
        self.point = point

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the layer and unmerge its result."""
        output = self.call_original(*args, **kwargs)
        active, block = active_point(call, self.point), call.block
        if active is None or not active.ran or block is None or block.reduction is None:
            return output
        return _restore(block.reduction, self.point, output)


class NormForward(ForwardOverride):
    """The override of a norm, which then applies the rotary embedding."""

    follows_wrappers = True

    def __init__(self, attachment: Attachment, layer: Layer, point: MergePoint, name: str, num_heads: int) -> None:
        super().__init__(attachment, layer)
        self.point, self.name, self.num_heads = point, name, num_heads

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the norm and rotate its output, which has the processor's layout."""
        x = self.call_original(*args, **kwargs)
        active = active_point(call, self.point)
        rotation = None if active is None else active.rotations.get(self.name)
        if active is None or rotation is None:
            return x
        active.ran.add(self.name)
        heads, text_first = self.num_heads, self.point.text_first
        if x.ndim == 3:
            by_head = x.reshape([0, 0, heads, -1]).transpose([0, 2, 1, 3])
            return rotation.rotate(by_head, text_first=text_first).transpose([0, 2, 1, 3]).flatten(2)
        if x.shape[1] == x.shape[2] == heads:
            assert call.block is not None
            call.block.run_unmerged(
                "layout",
                f"attention on {heads} tokens has {heads} heads, so the axis of its tokens is unknown, and it runs "
                "unmerged",
            )
            return x
        if x.shape[1] != heads:  # [batch, tokens, heads, channels], as Paddle's own attention takes them
            return rotation.rotate(x.transpose([0, 2, 1, 3]), text_first=text_first).transpose([0, 2, 1, 3])
        return rotation.rotate(x, text_first=text_first)


def active_point(call: DenoiserCall, point: MergePoint) -> ActivePoint | None:
    """Return the state of a merge point if it runs now."""
    active = None if call.block is None else call.block.active
    return active if active is not None and active.point == point else None


def stores_attention_maps(attachment: Attachment, role: str, attention: Layer) -> bool:
    """Return whether attention stores its maps; log that it runs unmerged."""
    processor = getattr(attention, "processor", None)
    stores = any(role in roles and is_a(processor, name) for name, roles in _MAP_STORING.items())
    if stores:
        attachment.warn_once(
            "maps",
            f"{type(processor).__name__} keeps attention maps of all tokens, so attention that uses it runs unmerged",
        )
    return stores


def _fits(reduction: TokenReduction, point: MergePoint, tokens: paddle.Tensor) -> bool:
    """Return whether a tensor holds the block's tokens, maybe with a text's."""
    return reduction.fits(tokens) or bool(point.text and tokens.ndim == 3 and tokens.shape[1] > reduction.num_tokens)


def _reduce(reduction: TokenReduction, point: MergePoint, tokens: paddle.Tensor, combine: str) -> paddle.Tensor:
    image, text = TokenSpan(reduction.num_tokens, point.text_first).split(tokens)
    return TokenSpan(reduction.num_left, point.text_first).join(reduction.reduce(image, combine), text)


def _restore(reduction: TokenReduction, point: MergePoint, output: Any) -> Any:
    """Unmerge the image tokens of a layer's first output."""
    first = first_output(output)
    num_text = first.shape[1] - reduction.num_left
    if num_text < 0 or (num_text > 0 and not point.text):
        return output  # not of merged tokens: a function of the user may replace the output
    image, text = TokenSpan(reduction.num_left, point.text_first).split(first)
    whole = TokenSpan(reduction.num_tokens, point.text_first).join(reduction.restore(image), text)
    return replace_first_output(output, whole)


def _refuse(block: BlockCall, reduction: TokenReduction, layer: Layer, tokens: paddle.Tensor) -> None:
    """Log that a layer got other tokens; run its block unmerged."""
    if reduction.keeps_queries:
        why = "an attention processor that puts other tokens beside them does that), so it runs unmerged"
    else:
        why = "feed-forward chunking does that), so it runs unmerged; switch chunking off to merge here"
    block.run_unmerged(
        "sublayer",
        f"{type(layer).__name__} got tokens of shape {list(tokens.shape)} instead of "
        f"[{reduction.batch}, {reduction.num_tokens}, channels] ({why}",
    )


def _has_rows(value: Any, reduction: TokenReduction) -> bool:
    """Return whether an argument has a row for each image token."""
    is_tensor = isinstance(value, paddle.Tensor) and value.ndim >= 3
    return is_tensor and value.shape[-2] == reduction.num_tokens
