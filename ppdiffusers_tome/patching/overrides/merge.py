"""Overrides that reduce tokens and restore them: ``restore(attention(reduce(norm(x)))) + x``.

The block's own layers compute ``norm`` and ``attention`` and add ``x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.kv_reduction import TokenReduction
from ppdiffusers_tome.merging.masks import add_group_size_bias, reduce_key_mask
from ppdiffusers_tome.merging.rotary import RotaryEmbedding, Rotation
from ppdiffusers_tome.merging.token_span import TokenSpan
from ppdiffusers_tome.patching.adapters.adapter import CROSS_ATTENTION, PROJECTIONS, MergePoint
from ppdiffusers_tome.patching.arguments import first_argument, replace_first_argument
from ppdiffusers_tome.patching.layer_class import Override
from ppdiffusers_tome.patching.processors import find_processor, stores_maps
from ppdiffusers_tome.patching.state.calls import BlockCall, DenoiserCall
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# Norms of the image and of the text, to whose outputs the rotary embedding is applied.
NORMS, TEXT_NORMS = ("norm_q", "norm_k"), ("norm_added_q", "norm_added_k")


class PointCall:
    """One call of a merge point, which runs on fewer tokens.

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
        # The last tokens of a projection and what they were reduced to, for the next one that gets the same tensor.
        self.reduced: tuple[Any, Any] = (None, None)

    def reduce(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Reduce the image tokens of ``[batch, tokens, channels]``."""
        reduction = self.reduction
        if not self.point.text:
            return reduction.reduce(tokens, self.combine)
        image, text = TokenSpan(reduction.num_tokens, self.point.text_first).split(tokens)
        return TokenSpan(reduction.num_left, self.point.text_first).join(reduction.reduce(image, self.combine), text)

    def restore(self, output: Any) -> Any:
        """Restore the image's tokens in a layer's first or only output."""
        if isinstance(output, (tuple, list)):
            restored = [self.restore(output[0]), *output[1:]]
            return restored if isinstance(output, list) else tuple(restored)
        reduction = self.reduction
        num_text = output.shape[1] - reduction.num_left
        if num_text < 0 or (num_text > 0 and not self.point.text):
            return output  # not of merged tokens: a function of the user may replace the output
        if num_text == 0:
            return reduction.restore(output)
        image, text = TokenSpan(reduction.num_left, self.point.text_first).split(output)
        return TokenSpan(reduction.num_tokens, self.point.text_first).join(reduction.restore(image), text)


class PointOverride(Override):
    """The override of the attention or feed-forward layer of a merge point."""

    def __init__(self, state: DenoiserState, layer: Layer, point: MergePoint, role: str, combine: str) -> None:
        super().__init__(state, layer)
        self.point, self.role, self.combine = point, role, combine
        # The type of a processor known to bypass required layers.
        self.bypassing: type | None = None

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Reduce the tokens, run the layer, restore its result."""
        tokens, block = first_argument(self.layer, args, kwargs), call.block
        reduction = None if block is None else self._find_reduction(block, tokens, kwargs)
        if block is None or reduction is None:
            return self.call_original(*args, **kwargs)
        block.point = point_call = PointCall(block, reduction, self.point, self.combine)
        try:
            keywords: Mapping[str, Any] = kwargs
            if self.point.rotary or self.point.mask:
                keywords = self._reduce_keywords(point_call, kwargs, tokens.dtype)
            if reduction.keeps_queries or self.point.merges_inside:
                output = self.call_original(*args, **keywords)
            else:
                inputs, keywords = replace_first_argument(self.layer, args, keywords, point_call.reduce(tokens))
                output = point_call.restore(self.call_original(*inputs, **keywords))
        finally:
            block.point = None
        if point_call.required <= point_call.ran and (block.reduction is not None or not point_call.ran):
            return output
        # Too late to merge: the result has other keys, or lacks its positions.
        self._note_bypass(point_call.required - point_call.ran)
        return self.call_original(*args, **kwargs)

    def _find_reduction(
        self, block: BlockCall, tokens: paddle.Tensor | None, kwargs: Mapping[str, Any]
    ) -> TokenReduction | None:
        """Return the reduction of the block's tokens; None: run unmerged."""
        is_nested, is_bypassed = block.point is not None, self.bypassing is find_processor(self.layer)
        reduction = None if is_nested or is_bypassed else block.match()
        obstacle = None if reduction is None else self._find_obstacle(reduction, tokens, kwargs)
        if obstacle is None:
            return reduction
        if obstacle[0] == "sublayer":
            block.run_unmerged()
        self.state.warn_once(*obstacle)
        return None

    def _find_obstacle(
        self, reduction: TokenReduction, tokens: paddle.Tensor | None, kwargs: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        """Return the warning why the layer runs unmerged, or None."""
        point, name, processor = self.point, type(self.layer).__name__, find_processor(self.layer)
        if stores_maps(processor, self.role):
            return "maps", (
                f"{processor.__name__} keeps attention maps of all tokens, so attention that uses it runs unmerged"
            )
        if tokens is None:
            return "arguments", f"{name} was called without its first argument, so it runs unmerged"
        misfit = "" if point.merges_inside else find_misfit(self.layer, point, reduction, tokens)
        if misfit:
            return "sublayer", misfit
        context = kwargs.get("encoder_hidden_states") if reduction.keeps_queries else None
        has_other_keys = context is not None and context.shape[1] != reduction.num_tokens
        if has_other_keys and point.has_prepared_mask and not point.merges_inside:
            return "keys", f"{name} got keys of other tokens than its block's, so it runs unmerged"
        for key, value in kwargs.items() if self.role == CROSS_ATTENTION else ():
            is_own = value is tokens or key == "encoder_hidden_states"
            has_rows = isinstance(value, paddle.Tensor) and value.ndim >= 3 and value.shape[-2] == reduction.num_tokens
            if has_rows and not is_own:
                return "rows", f"{name} got {key} with a row for each token, so it runs unmerged"
        if kwargs.get(point.rotary) is not None:
            absent = {norm for norm in NORMS if getattr(self.layer, norm, None) is None}
            if absent:
                return "bypass", self._describe_bypass(absent)
        mask = kwargs.get(point.mask)
        if mask is not None and not (mask.ndim == 4 and mask.shape[2] == 1):
            return "mask", (
                f"attention got a mask of shape {list(mask.shape)}, not one for its keys alone, so it runs unmerged"
            )
        return None

    def _reduce_keywords(self, point_call: PointCall, kwargs: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
        """Return the keywords for fewer tokens; prepare the rotations."""
        changed, point, reduction = dict(kwargs), self.point, point_call.reduction
        if kwargs.get(point.rotary) is not None:
            rotary = RotaryEmbedding(changed.pop(point.rotary), reduction.num_tokens)
            keys = rotary.rotation_at(reduction.positions)
            point_call.rotations = {"norm_q": rotary.grid_rotation if reduction.keeps_queries else keys, "norm_k": keys}
            if rotary.num_text:
                point_call.rotations |= dict.fromkeys(TEXT_NORMS, rotary.text_rotation)
            point_call.required.update(point_call.rotations)
        if point.mask:
            mask = kwargs.get(point.mask)
            if mask is not None:
                mask = reduce_key_mask(mask, reduction, text_first=point.text_first)
            if self.state.config.uses_group_sizes:
                text = kwargs.get("encoder_hidden_states")
                num_text = 0 if text is None else text.shape[1]
                mask = add_group_size_bias(mask, reduction, num_text, dtype, text_first=point.text_first)
            if mask is not None:
                changed[point.mask] = mask
        return changed

    def _note_bypass(self, missing: set[str]) -> None:
        """Remember and warn of a processor that did not call some layers."""
        if missing:
            self.bypassing = find_processor(self.layer)
            self.state.warn_once("bypass", self._describe_bypass(missing))

    def _describe_bypass(self, missing: set[str]) -> str:
        why = "reduces keys" if "to_k" in missing else "rotates merged tokens by their positions"
        return (
            f"attention with {find_processor(self.layer).__name__} does not call {', '.join(sorted(missing))}, where "
            f"ToMe {why}, so it runs unmerged; method='tome' needs no such layer where positions are not rotary"
        )


class InnerOverride(Override):
    """The override of a layer inside of attention, by its name."""

    follows_wrappers = True

    def __init__(self, state: DenoiserState, layer: Layer, name: str) -> None:
        super().__init__(state, layer)
        self.name = name


class ProjectionOverride(InnerOverride):
    """The override of a projection, which gets reduced tokens."""

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the layer on tokens that are reduced once for all projections."""
        point_call = call.point
        if point_call is None:
            return self.call_original(*args, **kwargs)
        point_call.ran.add(self.name)
        tokens = first_argument(self.layer, args, kwargs)
        if point_call.reduced[0] is not tokens:
            misfit = find_misfit(self.layer, point_call.point, point_call.reduction, tokens)
            if misfit:
                point_call.block.run_unmerged("sublayer", misfit)
                return self.call_original(*args, **kwargs)
            point_call.reduced = tokens, point_call.reduce(tokens)
        args, kwargs = replace_first_argument(self.layer, args, kwargs, point_call.reduced[1])
        if self.name == PROJECTIONS[-1]:
            point_call.reduced = (None, None)  # attention needs the memory
        return self.call_original(*args, **kwargs)


class OutputOverride(InnerOverride):
    """The override of attention's last layer, whose output is restored."""

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; restore its output if projections got reduced tokens."""
        point_call = call.point
        output = self.call_original(*args, **kwargs)
        return output if point_call is None or not point_call.ran else point_call.restore(output)


class NormOverride(InnerOverride):
    """The override of a norm, after which the rotary embedding is applied."""

    def __init__(self, state: DenoiserState, layer: Layer, name: str, num_heads: int) -> None:
        super().__init__(state, layer, name)
        self.num_heads = num_heads

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; rotate its output by reduced tokens' positions."""
        point_call = call.point
        output = self.call_original(*args, **kwargs)
        if point_call is None or self.name not in point_call.rotations:
            return output
        point_call.ran.add(self.name)
        if output.ndim == 3:  # [batch, tokens, heads * channels]
            return self._rotate(point_call, output.reshape([0, 0, self.num_heads, -1])).flatten(2)
        return self._rotate(point_call, output)

    def _rotate(self, point_call: PointCall, x: paddle.Tensor) -> paddle.Tensor:
        """Rotate ``[batch, heads, tokens, channels]``, or tokens before heads."""
        rotation, text_first = point_call.rotations[self.name], point_call.point.text_first
        if x.shape[1] == x.shape[2] == self.num_heads:
            point_call.block.run_unmerged(
                "layout",
                f"attention on {self.num_heads} tokens has {self.num_heads} heads, so the axis of its tokens is "
                "unknown, and it runs unmerged",
            )
            return x
        if x.shape[1] == self.num_heads:
            return rotation.rotate(x, text_first=text_first)
        return rotation.rotate(x.transpose([0, 2, 1, 3]), text_first=text_first).transpose([0, 2, 1, 3])


def find_misfit(layer: Layer, point: MergePoint, reduction: TokenReduction, tokens: paddle.Tensor) -> str:
    """Return why tokens of a layer cannot be reduced, or ""."""
    batch, num_tokens = reduction.batch, reduction.num_tokens
    if tokens.ndim == 3 and tokens.shape[1] >= num_tokens:
        has_text, is_batch = tokens.shape[1] > num_tokens, tokens.shape[0] == batch or -1 in (tokens.shape[0], batch)
        if (has_text and point.text) or (is_batch and not has_text):
            return ""
    if reduction.keeps_queries:
        why = "an attention processor that puts other tokens beside them does that), so it runs unmerged"
    else:
        why = "feed-forward chunking does that), so it runs unmerged; switch chunking off to merge here"
    return (
        f"{type(layer).__name__} got tokens of shape {list(tokens.shape)} instead of "
        f"[{batch}, {num_tokens}, channels] ({why}"
    )
