"""One call of a denoiser, and of a block in it: made when it starts, handed on, dropped when it ends."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.merging.rotary import Rotation
from ppdiffusers_tome.merging.section import Section, on_fewer_keys, on_merged_tokens
from ppdiffusers_tome.patching.paddle_compat import RunningCall
from ppdiffusers_tome.patching.state.pipeline_call import Denoising
from ppdiffusers_tome.patching.state.reducer import Reducer, build_reducer, merge_grid
from ppdiffusers_tome.settings.config import ToMeConfig


class Attached(Protocol):
    """What a call needs to know of the denoiser that it is of, see ``Attachment``."""

    config: ToMeConfig
    constants: Constants
    max_timestep: float

    def denoising(self) -> Denoising: ...

    def notify_watcher(self, block: BlockCall) -> None: ...

    def warn_once(self, topic: str, message: str) -> None: ...


class Call:
    """What the blocks of a denoiser share in one call of it.

    Args:
        attachment: of the denoiser.
        latents: the shape of those that the denoiser was given.
        conditioning: the tensors that it was given beside them and the timestep.
        training: whether the denoiser is being trained.

    Attributes:
        attachment: of the denoiser.
        timestep: scalar or ``[batch]``; None where the model tells none.
        progress: of the denoising, 0 to 1; None where no setting asks for it, or nothing tells.
        layouts: of the tokens of the blocks that are called now, by their host's hooks; empty between them.
        block: the one that is called now, or the last one that failed; ask ``Attachment.block``.
        in_a_graph: whether gradients may be asked of it, so that checkpointing may run parts of it again.
    """

    def __init__(
        self, attachment: Attached, latents: Sequence[int] = (), conditioning: Sequence[paddle.Tensor] = (), *,
        training: bool = False,
    ) -> None:  # fmt: skip
        self.attachment, self._config = attachment, attachment.config
        self._latents, self._conditioning = latents, conditioning
        # Training draws its timesteps and pictures at random.
        self._shares_steps = self._config.reuse_steps > 1 and not training
        self._has_timestep = False
        self.timestep: paddle.Tensor | None = None
        self.progress: float | None = None
        self.layouts: dict[object, Layout] = {}
        self.block: BlockCall | None = None
        self.in_a_graph = False
        self._of_blocks: dict[Hashable, Layout] = {}
        self._matchers: dict[Layout, Reducer] = {}
        # What is reused, by block (None for all), layout and batch; None where nothing is.
        self._matchings: dict[Any, TokenReduction | None] | None = {} if self._config.reuse_blocks else None

    def begin(self) -> None:
        """It begins, or a backward pass runs a part of it again."""
        self.in_a_graph = paddle.in_dynamic_mode() and paddle.is_grad_enabled()

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """The first timestep that a model embeds is the denoising's; some embed others as well.

        It stays on its device, but for a schedule and reuse over steps: then it is read, which waits for the device.

        Raises:
            ToMeValueError: a program is being recorded that would have to read it.
        """
        if self._has_timestep:
            return
        self._has_timestep, self.timestep = True, timestep
        if self._config.uses_progress:
            require_eager("a ratio that changes over the denoising, start or end")
        elif not self._shares_steps or not paddle.in_dynamic_mode():
            return  # a program that is being recorded has no values yet
        value = float(timestep.reshape([-1])[0])
        denoising = self.attachment.denoising()
        step = denoising.steps.at(value)
        self.progress = step.progress
        if step.progress is None and self._config.uses_progress:
            self.attachment.warn_once(
                "progress",
                f"a timestep of {value:g} is outside 0 to {self.attachment.max_timestep:g}, so the progress of the "
                "denoising is unknown, and the model runs unmerged, as its ratio changes over the denoising; call it "
                "through its pipeline, whose scheduler knows the progress, or give one ratio for the whole denoising",
            )
        if self._shares_steps:
            if step.starts:
                denoising.reuse.start_step(follows=step.follows)
            self._matchings = denoising.reuse.matchings(self._latents, self._conditioning)

    def see_latent(self, host: object, layout: Layout) -> None:
        """The blocks of a host work on tokens laid out so.

        Raises:
            ToMeValueError: a program is being recorded for any height or width.
        """
        if min(layout.grid.height, layout.grid.width) < 0:
            require_eager("an open height or width")
        self.layouts[host] = layout

    def enter_block(self, name: Hashable, layer: Layer, host: object) -> BlockCall | None:
        """A block is called, maybe again by a backward pass, outside its host; None where its grid is not known.

        Args:
            name: tells it from the others.
            layer: the block.
            host: as in ``see_latent``.
        """
        if host in self.layouts:
            self._of_blocks[name] = self.layouts[host]
        layout = self._of_blocks.get(name)
        self.block = None if layout is None else BlockCall(self, layer, name, layout)
        return self.block

    def matching_for(self, block: BlockCall, tokens: paddle.Tensor) -> TokenReduction | None:
        """What merges in a block of this call, made now or taken over; None where it runs unmerged.

        Args:
            block: which one.
            tokens: its input, ``[batch, tokens, channels]``, as many as the block's layout has.

        Raises:
            ToMeValueError: a program is being recorded that would have to decide how many tokens merge.
        """
        num_merged = self._num_merged(block.layout)
        if num_merged == 0 or not self._can_match(merge_grid(self._config, block.layout.grid)):
            return None
        if self._matchings is None:
            return self._matcher(block.layout, num_merged)(tokens)
        # While a program is recorded, the batch of some tokens is fixed and of others open, though it is the same.
        batch = tokens.shape[0] if paddle.in_dynamic_mode() else None
        key = (None if self._config.reuse_blocks else block.name, block.layout, batch)
        if key not in self._matchings:
            self._matchings[key] = self._matcher(block.layout, num_merged)(tokens)
        return self._matchings[key]

    def _num_merged(self, layout: Layout) -> int:
        """How many tokens of a grid merge now, or of each frame where frames merge by themselves."""
        config = self._config
        if not self._has_timestep and config.uses_progress:
            self.attachment.warn_once(
                "timestep",
                "this model, or part of one, does not report its timestep, so the progress of the denoising is "
                "unknown, and it runs unmerged, as its ratio changes over the denoising; give one ratio for all of it",
            )
        if not self._has_timestep and self._shares_steps and paddle.in_dynamic_mode():
            self.attachment.warn_once(
                "steps",
                "this model, or part of one, does not report its timestep, so reuse_steps has no effect here; "
                "reuse_blocks has",
            )
        if config.uses_progress and self.progress is None:
            return 0
        return merge_grid(config, layout.grid).num_merged(config.ratio_at(layout.level, self.progress))

    def _can_match(self, grid: Grid) -> bool:
        config = self._config
        if config.min_similarity is not None:
            require_eager("min_similarity")
        if grid.num_cells(config.sx, config.sy, config.st) == 0:
            cell, more = Grid(config.sy, config.sx, config.st), "more frames, " if config.st > 1 else ""
            self.attachment.warn_once(
                "cell",
                f"a grid of {grid} tokens is smaller than one cell of {cell}, so its blocks run unmerged; use {more}a "
                "larger picture or a smaller stride",
            )
            return False
        return True

    def _matcher(self, layout: Layout, num_merged: int) -> Reducer:
        """What all blocks on a grid merge by, made for the first of them that needs it."""
        if layout not in self._matchers:
            self._matchers[layout] = build_reducer(
                self._config, layout, num_merged, timestep=self.timestep, constants=self.attachment.constants
            )
        return self._matchers[layout]


@dataclass(eq=False)
class OpenSection:
    """A stretch of a block that runs on merged tokens now.

    Attributes:
        by: who opened it.
        arithmetic: what merges and unmerges.
        keywords: of the attention's call, as they were, where it is called by keyword.
        queries, of_keys, text: how those are turned, where the call brought a rotary embedding.
        needed: the layers of the attention that have to run, or its result is not that of what merges.
        met: those of them, and others, that ran.
    """

    by: object
    arithmetic: Section
    keywords: Mapping[str, Any] = field(default_factory=dict)
    queries: Rotation | None = None
    of_keys: Rotation | None = None
    text: Rotation | None = None
    needed: frozenset[str] = frozenset()
    met: set[str] = field(default_factory=set)


class BlockCall:
    """One call of a block.

    Args:
        call: of the denoiser, in which it is.
        layer: the block.
        name: tells it from the other blocks of the denoiser.
        layout: of its tokens.
        tokens: its input; None where it is set later, as hooks do.

    Attributes:
        tokens: the block's input until it is matched, ``[batch, tokens, channels]`` or ``[batch, channels, height,
            width]``; None where it is not seen yet.
        matched: whether it was decided what merges.
        matching: what merges; None where nothing does.
        section: the stretch of the block that runs on merged tokens now; None between them.
        asked: whether a layer at which tokens merge was called.
    """

    def __init__(
        self, call: Call, layer: Layer, name: Hashable, layout: Layout, tokens: paddle.Tensor | None = None
    ) -> None:
        self.call, self.name, self.layout = call, name, layout
        self.running = RunningCall(layer)
        self.tokens = tokens
        self.matched = False
        self.matching: TokenReduction | None = None
        self.section: OpenSection | None = None
        self.asked = False

    @property
    def lacks_keys(self) -> bool:
        """Whether no layer that makes keys was called, where keys would have merged."""
        return not self.asked and (not self.matched or self.matching is not None)

    def match(self) -> TokenReduction | None:
        """Decide what merges, once: when it is first asked for, as a DiT embeds its timestep in its first block."""
        if not self.matched and self.tokens is not None:
            self.matched, tokens, self.tokens = True, self.tokens, None
            rows = self._rows(tokens)
            self.matching = None if rows is None else self.call.matching_for(self, rows)
            self.call.attachment.notify_watcher(self)
        return self.matching

    def _rows(self, tokens: paddle.Tensor) -> paddle.Tensor | None:
        """The block's input as ``[batch, tokens, channels]``; None where it is not what its layout says."""
        layout, given = self.layout, list(tokens.shape)
        grid = layout.grid
        if tokens.ndim == 4 and given[2:] == [grid.height, grid.width]:
            tokens = tokens.flatten(2).transpose([0, 2, 1])
        if tokens.ndim == 3 and tokens.shape[1] == layout.num_tokens:
            return tokens
        self.call.attachment.warn_once(
            "tokens",
            f"a block got tokens of shape {given} where its latent has {grid} tokens"
            f"{f' behind {layout.prefix} others' if layout.prefix else ''}; it runs unmerged",
        )
        return None

    def run_unmerged(self) -> None:
        """Nothing more merges in this call of the block."""
        self.matched, self.tokens, self.matching, self.section = True, None, None, None

    def opened(self, by: object, how: str, *, text_first: bool = False) -> OpenSection:
        """The section that ``by`` opened, or a new one: the others as in ``merging.section.on_merged_tokens``."""
        if self.section is None or self.section.by is not by:
            assert self.matching is not None
            if self.matching.keeps_queries:
                arithmetic = on_fewer_keys(self.matching, text_first=text_first)
            else:
                arithmetic = on_merged_tokens(self.matching, how, text_first=text_first)
            next(arithmetic)
            self.section = OpenSection(by, arithmetic)
        return self.section

    def open_section(self, by: object) -> OpenSection | None:
        """The section that ``by`` opened; None where it opened none, or it is closed."""
        return self.section if self.section is not None and self.section.by is by else None

    def closed(self, by: object) -> OpenSection | None:
        """The section that ``by`` opened, for its result; None where it opened none."""
        section = self.open_section(by)
        if section is not None:
            self.section = None
        return section


def require_eager(what: str, remedy: str = "apply_tome with one ratio and without it") -> None:
    """A program that is being recorded has no values yet, and its shapes are fixed.

    Raises:
        ToMeValueError: one is being recorded.
    """
    if not paddle.in_dynamic_mode():
        raise ToMeValueError(
            f"{what} cannot become part of a program, which fixes how many tokens merge; {remedy} before exporting"
        )
