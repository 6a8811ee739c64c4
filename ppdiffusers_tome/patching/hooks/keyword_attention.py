"""Hooks on attention that is called by keyword: its tokens merge there, and so does whatever else the call brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import paddle

from ppdiffusers_tome.merging.masks import add_group_size_bias, reduce_key_mask
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.rotary import RotaryEmbedding, Rotation, count_positions
from ppdiffusers_tome.merging.section import Given
from ppdiffusers_tome.patching.hooks.merge import SectionHooks, is_new, stores_attention_maps
from ppdiffusers_tome.patching.state.calls import BlockCall, OpenSection
from ppdiffusers_tome.patching.step_caches import first_of, reset_step_caches

if TYPE_CHECKING:
    from paddle.nn import Layer


class KeywordAttentionHooks(SectionHooks):
    """On attention that is called by keyword, and on the layers in it that make queries and keys.

    A rotary embedding leaves the call, and is applied behind the norms of queries and keys.
    """

    attention: Layer
    # The processor of which it was found out that it goes round layers which have to run.
    _goes_round: type | None = None

    def enter(self, attention: Layer, inputs: tuple, keywords: Mapping[str, Any]) -> tuple[tuple, dict] | None:
        block = self.attachment.block()
        matching = None if block is None else block.match()
        if block is None or matching is None or stores_attention_maps(self.attachment, self.role, self.attention):
            return None
        tokens = keywords.get(self.section.keyword)
        if tokens is None:
            self.attachment.warn_once(
                "position",
                f"{type(attention).__name__} was called without the keyword {self.section.keyword}, by which ToMe sees "
                "its tokens, so it runs unmerged",
            )
            block.run_unmerged()
        elif not matching.fits(tokens):
            self._refuse(block, matching, attention, tokens)
        elif self._fits(matching, attention, keywords):
            return inputs, self._changed(block, matching, keywords)
        else:
            block.run_unmerged()
        return None

    def run(self, layer: Layer, inputs: tuple) -> None:
        self._meet("to_q")

    def merge_keys(self, layer: Layer, inputs: tuple) -> tuple | None:
        self._meet("to_k")
        return self.merge(layer, inputs)

    def turn_queries(self, layer: Layer, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        section = self._meet("norm_q")
        return None if section is None else self._turned(section.queries, output)

    def turn_keys(self, layer: Layer, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        section = self._meet("norm_k")
        return None if section is None else self._turned(section.of_keys, output)

    def turn_text_queries(self, layer: Layer, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        section = self._meet("norm_added_q")
        return None if section is None else self._turned(section.text, output)

    def turn_text_keys(self, layer: Layer, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        section = self._meet("norm_added_k")
        return None if section is None else self._turned(section.text, output)

    def leave(self, attention: Layer, inputs: tuple, output: Any) -> Any:
        section = self._section()
        missing = frozenset() if section is None else section.needed - section.met
        if section is not None and missing and is_new(first_of(output), section):
            # Too late to merge: what was computed has other keys, or lacks its positions.
            block = self.attachment.block()
            assert block is not None
            self._goes_round = type(self._processor(attention))
            block.run_unmerged()
            self._say_it_goes_round(attention, missing)
            reset_step_caches(attention, also_whole=True)  # or a cache would hand out what was computed just now
            # Hooks of others that are behind this one see both results, this first.
            return attention(*inputs, **section.keywords)
        return self.unmerge(attention, inputs, output)

    def _meet(self, name: str) -> OpenSection | None:
        """A layer of the attention runs; the section that it runs in."""
        section = self._section()
        if section is not None:
            section.met.add(name)
        return section

    def _section(self) -> OpenSection | None:
        block = self.attachment.block()
        return None if block is None else block.open_section(self)

    def _fits(self, matching: TokenReduction, attention: Layer, keywords: Mapping[str, Any]) -> bool:
        """Whether all that the call brings can be made to fit merged tokens; if not, that is said."""
        embedding, mask = self._given(self.section.rotary, keywords), self._given(self.section.mask, keywords)
        absent = frozenset(name for name in NORMS if getattr(attention, name, None) is None)
        if type(self._processor(attention)) is self._goes_round:
            pass  # that was said when it was found out
        elif embedding is not None and absent:
            self._say_it_goes_round(attention, absent)
        elif embedding is not None and count_positions(embedding) < matching.num_tokens:
            self.attachment.warn_once(
                "rotary rows",
                f"attention on {matching.num_tokens} tokens got a rotary embedding of {count_positions(embedding)}, so "
                "it runs unmerged",
            )
        elif mask is not None and not _is_for_keys(mask):
            self.attachment.warn_once(
                "mask",
                f"attention got a mask of shape {list(mask.shape)}, not one for its keys alone, so it runs unmerged",
            )
        else:
            return True
        return False

    def _changed(
        self, block: BlockCall, matching: TokenReduction, keywords: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The call's keywords for merged tokens."""
        section, changed = self._opened(block), dict(keywords)
        section.keywords = keywords
        needed: set[str] = set()
        tokens = keywords[self.section.keyword]
        if self._given(self.section.rotary, keywords) is not None:
            rotary = RotaryEmbedding(changed.pop(self.section.rotary), matching.num_tokens)
            section.of_keys = rotary.rotation_at(matching.positions)
            section.queries = rotary.grid_rotation if matching.keeps_queries else section.of_keys
            needed.update(NORMS)
            if rotary.num_text:
                section.text = rotary.text_rotation
                needed.update(NORMS_OF_TEXT)
        if matching.keeps_queries:
            needed.add("to_k")
        else:
            changed[self.section.keyword] = section.arithmetic.send(Given(tokens))
        section.needed = frozenset(needed)
        if self.section.mask:
            mask = self._mask(matching, keywords, tokens.dtype)
            if mask is not None:
                changed[self.section.mask] = mask
        return changed

    def _mask(
        self, matching: TokenReduction, keywords: Mapping[str, Any], dtype: paddle.dtype
    ) -> paddle.Tensor | None:
        text_first = self.section.text_first
        mask = keywords.get(self.section.mask)
        if mask is not None:
            mask = reduce_key_mask(mask, matching, text_first=text_first)
        if not self.attachment.config.uses_group_sizes:
            return mask
        text = keywords.get("encoder_hidden_states")
        return add_group_size_bias(
            mask, matching, 0 if text is None else text.shape[1], dtype, text_first=text_first
        )  # fmt: skip

    def _turned(self, turn: Rotation | None, x: paddle.Tensor) -> paddle.Tensor | None:
        """Queries or keys turned by their positions, in whichever layout the norm has them; None where none turn."""
        if turn is None:
            return None
        heads, text_first = self.attention.heads, self.section.text_first
        if x.ndim == 3:
            by_head = x.reshape([0, 0, heads, -1]).transpose([0, 2, 1, 3])
            return turn.rotate(by_head, text_first=text_first).transpose([0, 2, 1, 3]).flatten(2)
        if x.shape[1] != heads:  # [batch, tokens, heads, channels], as Paddle's own attention takes them
            return turn.rotate(x.transpose([0, 2, 1, 3]), text_first=text_first).transpose([0, 2, 1, 3])
        return turn.rotate(x, text_first=text_first)

    def _given(self, name: str, keywords: Mapping[str, Any]) -> Any:
        """What a call brings by the keyword of that name; None also where there is no such keyword."""
        return keywords.get(name) if name else None

    def _processor(self, attention: Layer) -> Any:
        return getattr(attention, "processor", None)

    def _say_it_goes_round(self, attention: Layer, missing: frozenset[str]) -> None:
        why = "chooses keys" if "to_k" in missing else "turns merged tokens by their positions"
        self.attachment.warn_once(
            "goes round",
            f"attention with {type(self._processor(attention)).__name__} does not call {', '.join(sorted(missing))}, "
            f"where ToMe {why}, so it runs unmerged",
        )


# Behind these a rotary embedding is applied, to the grid's tokens and to a text's.
NORMS, NORMS_OF_TEXT = ("norm_q", "norm_k"), ("norm_added_q", "norm_added_k")


def _is_for_keys(mask: paddle.Tensor) -> bool:
    """``[batch, heads, 1, keys]``."""
    return mask.ndim == 4 and mask.shape[2] == 1
