"""Hooks on attention that is called by keyword: its tokens merge there, and so does whatever else the call brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import paddle

from ppdiffusers_tome.attaching.adapters.adapter import FIRST
from ppdiffusers_tome.attaching.calls.call import BlockCall, MatchingOrDownsampling, OpenSection
from ppdiffusers_tome.attaching.hooks.section import SectionHooks, keeps_maps
from ppdiffusers_tome.attaching.kept_outputs import drop_kept
from ppdiffusers_tome.merging.downsampling import Downsampling
from ppdiffusers_tome.merging.masks import merged_mask, with_sizes
from ppdiffusers_tome.merging.rotary import Rotary, Turn
from ppdiffusers_tome.merging.section import Given

if TYPE_CHECKING:
    from paddle.nn import Layer


class KeywordAttentionHooks(SectionHooks):
    """On attention that is called by keyword, and on the layers in it that make queries and keys.

    A rotary embedding leaves the call, and is applied behind the norms of queries and keys.
    """

    attention: Layer
    # The processor of which it was found out that it goes round those norms.
    _goes_round: type | None = None

    def enter(self, attention: Layer, inputs: tuple, keywords: Mapping[str, Any]) -> tuple[tuple, dict] | None:
        block = self.attachment.block()
        matching = None if block is None else block.match()
        if block is None or matching is None or keeps_maps(self.attachment, self.role, self.attention):
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
        elif self._can_merge(block, attention, keywords):
            return inputs, self._changed(block, matching, keywords)
        return None

    def run(self, layer: Layer, inputs: tuple) -> None:
        section = self._section()
        if section is not None:
            section.ran = True

    def turn_queries(self, layer: Layer, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        section = self._section()
        return None if section is None else self._turned(section, section.queries, output)

    def turn_keys(self, layer: Layer, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        section = self._section()
        return None if section is None else self._turned(section, section.of_keys, output)

    def turn_text(self, layer: Layer, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor | None:
        section = self._section()
        return None if section is None or section.text is None else section.text.turned(output)

    def leave(self, attention: Layer, inputs: tuple, output: Any) -> Any:
        section = self._section()
        if section is not None and section.queries is not None and section.ran and section.turned < 2:
            # Too late to merge: what was computed lacks its positions.
            block = self.attachment.block()
            assert block is not None
            self._goes_round = type(self._processor(attention))
            block.run_unmerged()
            self._say_it_goes_round(attention)
            drop_kept(attention, also_whole=True)  # or a cache would hand out what was computed just now
            return attention(*inputs, **section.keywords)
        return self.unmerge(attention, inputs, output)

    def _section(self) -> OpenSection | None:
        block = self.attachment.block()
        return None if block is None else block.open_section(self)

    def _can_merge(self, block: BlockCall, attention: Layer, keywords: Mapping[str, Any]) -> bool:
        """Whether all that the call brings can be made to fit merged tokens; otherwise the block runs unmerged."""
        turns = self.section.rotary and keywords.get(self.section.rotary) is not None
        norms = all(getattr(attention, name, None) is not None for name in NORMS)
        if turns and (not norms or type(self._processor(attention)) is self._goes_round):
            self._say_it_goes_round(attention)
        elif _mask_of(self.section.mask, keywords) is not None and not _is_for_keys(keywords[self.section.mask]):
            shape = list(keywords[self.section.mask].shape)
            self.attachment.warn_once(
                "mask", f"attention got a mask of shape {shape}, not one for its keys alone, so it runs unmerged"
            )
        else:
            return True
        block.run_unmerged()
        return False

    def _changed(
        self, block: BlockCall, matching: MatchingOrDownsampling, keywords: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The call's keywords for merged tokens."""
        section, changed = self._opened(block), dict(keywords)
        section.keywords = keywords
        tokens = keywords[self.section.keyword]
        if self.section.rotary and keywords.get(self.section.rotary) is not None:
            rotary = Rotary(changed.pop(self.section.rotary), matching.num_tokens)
            section.of_keys = rotary.of(matching.positions)
            section.queries = rotary.of_all if isinstance(matching, Downsampling) else section.of_keys
            section.text = rotary.of_text if rotary.num_text else None
        if not isinstance(matching, Downsampling):
            changed[self.section.keyword] = section.arithmetic.send(Given(tokens))
        if self.section.mask:
            mask = self._mask(matching, keywords, tokens.dtype)
            if mask is not None:
                changed[self.section.mask] = mask
        return changed

    def _mask(
        self, matching: MatchingOrDownsampling, keywords: Mapping[str, Any], dtype: paddle.dtype
    ) -> paddle.Tensor | None:
        others_first = self.section.others == FIRST
        mask = keywords.get(self.section.mask)
        if mask is not None:
            mask = merged_mask(mask, matching, others_first=others_first)
        if not self.attachment.config.proportional:
            return mask
        text = keywords.get("encoder_hidden_states")
        return with_sizes(
            mask, matching, 0 if text is None else text.shape[1], dtype, others_first=others_first
        )  # fmt: skip

    def _turned(self, section: OpenSection, turn: Turn | None, x: paddle.Tensor) -> paddle.Tensor | None:
        if turn is None:
            return None
        section.turned += 1
        others_first = self.section.others == FIRST
        if x.ndim == 3:
            heads = self.attention.heads
            by_head = x.reshape([0, 0, heads, -1]).transpose([0, 2, 1, 3])
            return turn.turned(by_head, others_first=others_first).transpose([0, 2, 1, 3]).flatten(2)
        return turn.turned(x, others_first=others_first)

    def _processor(self, attention: Layer) -> Any:
        return getattr(attention, "processor", None)

    def _say_it_goes_round(self, attention: Layer) -> None:
        self.attachment.warn_once(
            "rotary",
            f"attention with {type(self._processor(attention)).__name__} has no norms of queries and keys, or goes "
            "round them, and it is behind those that ToMe turns merged tokens by their positions, so it runs unmerged",
        )


# Behind these a rotary embedding is applied.
NORMS = ("norm_q", "norm_k")


def _mask_of(name: str, keywords: Mapping[str, Any]) -> paddle.Tensor | None:
    return keywords.get(name) if name else None


def _is_for_keys(mask: paddle.Tensor) -> bool:
    """``[batch, heads, 1, keys]``."""
    return mask.ndim == 4 and mask.shape[2] == 1
