"""Overrides that reduce tokens and restore them: ``restore(attention(reduce(norm(x)))) + x``.

The block's own layers compute ``norm`` and ``attention`` and add ``x``.
"""

from dataclasses import dataclass
from typing import Any

import paddle

from ppdiffusers_tome.merging.masks import add_group_size_bias, reduce_key_mask
from ppdiffusers_tome.merging.rotary import RotaryEmbedding
from ppdiffusers_tome.patching.adapters.adapter import CROSS_ATTENTION, PROJECTIONS, TEXT_NORMS, MergePoint
from ppdiffusers_tome.patching.arguments import Arguments, Keywords, find_first_argument, replace_first_argument
from ppdiffusers_tome.patching.call_stack import CALL_STACK, StackEntry
from ppdiffusers_tome.patching.override import Original, Override
from ppdiffusers_tome.patching.processors import find_processor, stores_maps
from ppdiffusers_tome.patching.slots import list_functions
from ppdiffusers_tome.patching.state.block_call import WATCHERS, BlockCall
from ppdiffusers_tome.patching.state.point_call import PointCall, UnmergeableError


@dataclass(eq=False, repr=False)
class PointOverride(Override):
    """The override of the attention or feed-forward layer of a merge point."""

    runs_in = "block_call"

    point: MergePoint
    role: str
    # The class of a processor that once did not call all that it has to; later calls run unmerged at once, as trying
    # again would compute attention twice.
    bypassing_processor: type | None = None

    def run(self, block_call: BlockCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run the layer on fewer tokens and restore its result, or unmerged."""
        is_bypassed = self.bypassing_processor is not None and self.bypassing_processor is find_processor(self.layer)
        reduction = None if is_bypassed else block_call.reduction
        if reduction is None:
            return original(*args, **kwargs)
        try:
            return self._run_merged(PointCall(block_call, reduction, self.point), original, args, kwargs)
        except UnmergeableError as error:
            warning = str(error)
        output = original(*args, **kwargs)  # which raises an error of the user's own again
        self.state.warn_once(warning)
        return output

    def _run_merged(self, point_call: PointCall, original: Original, args: Arguments, kwargs: Keywords) -> Any:
        """Run the layer on reduced tokens, or let overrides inside reduce them."""
        block_call, point, reduction = point_call.block_call, self.point, point_call.reduction
        processor = find_processor(self.layer)
        if stores_maps(processor, self.role):
            raise UnmergeableError(
                f"{processor.__name__} keeps attention maps of all tokens, so attention that uses it runs unmerged"
            )
        tokens = find_first_argument(self.layer, args, kwargs)
        if self.role == CROSS_ATTENTION:
            self._require_no_rows(kwargs, tokens, reduction.num_tokens)
        if not point.merges_inside:
            point_call.require_fit(self.layer, tokens)
        if reduction.keeps_queries:
            point_call.awaited.add("to_k")
        if point.rotary and kwargs.get(point.rotary) is not None:
            kwargs = self._take_rotary(point_call, kwargs)
        if point.mask:
            kwargs = self._reduce_mask(point_call, kwargs, tokens.dtype)
        reduces_inside = reduction.keeps_queries or point.merges_inside
        if not reduces_inside:
            args, kwargs = replace_first_argument(self.layer, args, kwargs, point_call.reduce(tokens))
        output = CALL_STACK.run(StackEntry(block_call.call, block_call, point_call), original, *args, **kwargs)
        if point_call.awaited:  # the result has other keys, or lacks its positions
            # A function of the user inside may leave attention out in some calls only.
            self.bypassing_processor = processor if len(list_functions(self.layer)) == 1 else None
            layer = max(point_call.awaited)  # one, so that blocks that await others do not warn again
            raise UnmergeableError(
                f"attention with {processor.__name__}, or a function in place of its forward, does not call {layer}, "
                "where ToMe reduces keys or rotates merged tokens by their positions, so it runs unmerged; "
                "method='tome' needs no such layer where positions are not rotary"
            )
        if WATCHERS:
            block_call.tell_watchers()
        return output if reduces_inside else point_call.restore(output)

    def _require_no_rows(self, kwargs: Keywords, tokens: Any, num_tokens: int) -> None:
        """Refuse keywords with a row for each token, such as masks of regions."""
        for name, value in kwargs.items():
            is_own = value is tokens or name == "encoder_hidden_states"
            if isinstance(value, paddle.Tensor) and value.ndim >= 3 and value.shape[-2] == num_tokens and not is_own:
                raise UnmergeableError(
                    f"{type(self.layer).__name__} got {name} with a row for each token, so it runs unmerged"
                )

    def _take_rotary(self, point_call: PointCall, kwargs: Keywords) -> Keywords:
        """Take the rotary embedding out of the keywords; prepare the rotations."""
        reduction, keyword = point_call.reduction, self.point.rotary
        rotary = RotaryEmbedding(kwargs[keyword], reduction.num_tokens)
        keys = rotary.find_rotation(reduction.positions)
        point_call.rotations = {"norm_q": rotary.grid_rotation if reduction.keeps_queries else keys, "norm_k": keys}
        if rotary.num_text:
            point_call.rotations |= dict.fromkeys(TEXT_NORMS, rotary.text_rotation)
        point_call.awaited |= point_call.rotations.keys()
        return {name: value for name, value in kwargs.items() if name != keyword}

    def _reduce_mask(self, point_call: PointCall, kwargs: Keywords, dtype: Any) -> Keywords:
        """Return the keywords with a mask of fewer keys, and group sizes."""
        reduction, keyword, text_first = point_call.reduction, self.point.mask, self.point.text_first
        mask = kwargs.get(keyword)
        if mask is not None:
            if mask.ndim != 4 or mask.shape[2] != 1:
                raise UnmergeableError(
                    f"attention got a mask of shape {list(mask.shape)}, not one for its keys alone, so it runs unmerged"
                )
            mask = reduce_key_mask(mask, reduction, text_first=text_first)
        if self.state.config.uses_group_sizes:
            text = kwargs.get("encoder_hidden_states")
            num_text = 0 if text is None else text.shape[1]
            mask = add_group_size_bias(mask, reduction, num_text, dtype, text_first=text_first)
        return kwargs if mask is None else {**kwargs, keyword: mask}


@dataclass(eq=False, repr=False)
class InnerOverride(Override):
    """The override of a layer inside of attention, by its name."""

    runs_in = "point_call"
    follows_wrappers = True

    name: str


class ProjectionOverride(InnerOverride):
    """The override of a projection, which gets reduced tokens."""

    def run(self, point_call: PointCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run the layer on tokens that are reduced once for all projections."""
        point_call.awaited.discard(self.name)
        point_call.has_reduced = True
        tokens = find_first_argument(self.layer, args, kwargs)
        if point_call.projected is not tokens:
            point_call.require_fit(self.layer, tokens)
            point_call.reduced = point_call.reduce(tokens)
            point_call.projected = tokens
        args, kwargs = replace_first_argument(self.layer, args, kwargs, point_call.reduced)
        if self.name == PROJECTIONS[-1]:
            point_call.projected = point_call.reduced = None  # attention needs the memory
        return original(*args, **kwargs)


class OutputOverride(InnerOverride):
    """The override of attention's last layer, whose output is restored."""

    def run(self, point_call: PointCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        return point_call.restore(output) if point_call.has_reduced else output


@dataclass(eq=False, repr=False)
class NormOverride(InnerOverride):
    """The override of a norm, after which the rotary embedding is applied."""

    num_heads: int

    def run(self, point_call: PointCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if self.name not in point_call.rotations:
            return output
        point_call.awaited.discard(self.name)
        if output.ndim == 3:  # [batch, tokens, heads * channels]
            by_head = output.reshape([0, 0, self.num_heads, -1]).transpose([0, 2, 1, 3])
            return self._rotate(point_call, by_head).transpose([0, 2, 1, 3]).flatten(2)
        if output.shape[1] == output.shape[2] == self.num_heads:
            raise UnmergeableError(
                f"attention on {self.num_heads} tokens has {self.num_heads} heads, so the axis of its tokens is "
                "unknown, and it runs unmerged"
            )
        if output.shape[1] == self.num_heads:
            return self._rotate(point_call, output)
        return self._rotate(point_call, output.transpose([0, 2, 1, 3])).transpose([0, 2, 1, 3])

    def _rotate(self, point_call: PointCall, x: paddle.Tensor) -> paddle.Tensor:
        """Rotate ``[batch, heads, tokens, channels]``."""
        return point_call.rotations[self.name].rotate(x, text_first=point_call.point.text_first)
