"""The state of one call of a denoiser or a block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.patching.blocks import stores_attention_maps
from ppdiffusers_tome.patching.state.reducer import Reducer, build_reducer
from ppdiffusers_tome.patching.state.step_cache import CachedStep
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS
from ppdiffusers_tome.settings.types import format_setting

if TYPE_CHECKING:
    from paddle.nn import Layer

    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
    from ppdiffusers_tome.patching.state.pipeline_call import Denoising
    from ppdiffusers_tome.patching.state.point_call import PointCall
    from ppdiffusers_tome.patching.state.progress import Step

# Called with every ``BlockCall`` in which tokens merge, of all denoisers.
WATCHERS: list[Callable[[BlockCall], None]] = []
_CALLS_DIFFER = (
    "this model's calls cannot be told apart from step to step, as what it is given beside its latents is new in every "
    "step, or the same in several calls of one"
)


class DenoiserCall:
    """The state that blocks share in one call of their denoiser.

    ``latent_shape`` and ``conditioning`` identify it among the calls of the previous step.

    Attributes:
        timestep: scalar or ``[batch]``; None where the model has none.
        progress: of the denoising, 0 to 1; None if no setting needs it, or it is unknown.
        layouts: of the blocks in the parents that run now, by the override of the parent.
        block: the block that runs now; None between blocks.
        denoiser: the layer that is called.
        timestep_argument: of the denoiser's call, for models that embed it inside their first block.
        cached_step: of the cache over steps; None where all layers run.
        foreign_forward: the name of the denoiser's class where other code replaced its ``forward``, else "".
        in_graph: True if gradients may be computed, so that checkpointing may run parts of it again.
        is_running: True until the denoiser returns.
        stretches: of gradient checkpointing, by id, that a backward pass is to run again in this call.
        num_blocks: the number of blocks that ran.
    """

    def __init__(
        self, state: DenoiserState, latent_shape: Sequence[int] = (), conditioning: Sequence[paddle.Tensor] = (), *,
        training: bool = False, denoiser: Layer | None = None,
    ) -> None:  # fmt: skip
        self.state, self._config = state, state.config
        self.num_blocks = 0
        self._latent_shape, self._conditioning = latent_shape, conditioning
        self.denoiser = denoiser
        # Training uses random timesteps and images.
        self._shares_steps = self._config.reuse_steps > 1 and not training
        self.timestep: paddle.Tensor | None = None
        self.timestep_argument: paddle.Tensor | None = None
        self.cached_step: CachedStep | None = None
        self._step_number: int | None = None
        self.foreign_forward = ""
        self.is_running = False
        self.stretches: set[int] = set()
        self.progress: float | None = None
        self.layouts: dict[object, Layout] = {}
        self.block: BlockCall | None = None
        self.in_graph = paddle.in_dynamic_mode() and paddle.is_grad_enabled()
        self._block_layouts: dict[Hashable, Layout] = {}
        self._reducers: dict[Layout, Reducer] = {}
        # Reductions to reuse, by block (None for all), layout and batch; None where nothing is reused.
        self._reductions: dict[Any, TokenReduction | None] | None = {} if self._config.reuse_blocks else None

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """Set the timestep, the first that the model embeds; ignore later ones.

        Schedules and reuse over steps read it, which waits for the device.
        """
        if self.timestep is not None:
            return
        self.timestep = timestep
        if self._config.uses_progress:
            require_eager("a ratio that changes over the denoising, start or end")
        elif self._config.cache:
            require_eager("a cache over steps")
        elif not self._shares_steps or not paddle.in_dynamic_mode():
            return  # a program that is being traced has no values yet
        value = float(timestep.reshape([-1])[0])
        denoising = self.state.denoising()
        step = denoising.tracker.step_at(value)
        self.progress = step.progress
        if denoising.is_of_pipeline and step.progress is not None:
            denoising.progress.add(step.progress)
        if step.progress is None and self._config.uses_progress:
            self.state.warn_once(
                "progress",
                f"a timestep of {value:g} is outside 0 to {self.state.max_timestep:g}, so the progress of the "
                f"denoising is unknown, and the model runs unmerged; {denoising.advice}, or give one ratio for the "
                "whole denoising",
            )
        if self._shares_steps:
            if step.is_new_step:
                denoising.matchings.next_step(continues=step.continues)
            self._reductions = denoising.matchings.lookup(self._latent_shape, self._conditioning)
            if denoising.matchings.never_matches:
                self.state.warn_once(
                    "no reuse",
                    f"{_CALLS_DIFFER}, so reuse_steps has no effect here; reuse_blocks has",
                )
        if self._config.cache:
            self._step_number = step.number
            obstacle = self._find_cache_obstacle(denoising, step, value)
            if obstacle is None:
                self.cached_step = self._begin_cached_step(denoising, step)
            else:
                self.state.warn_once(*obstacle)

    def find_cached_step(self) -> CachedStep | None:
        """Return the step of the cache; None where all layers run."""
        if self.timestep is None and self.timestep_argument is not None:
            self.set_timestep(self.timestep_argument)
        return self.cached_step

    def end(self) -> None:
        """Count a call that ran to its end, for the report of its image."""
        if not self._config.cache:
            return
        if self.timestep is None:
            self._warn_of_missing_timestep()
        is_skipped = self.cached_step is not None and self.cached_step.has_skipped
        self.state.denoising().report.count(self._step_number, is_skipped=is_skipped)

    def _find_cache_obstacle(self, denoising: Denoising, step: Step, timestep: float) -> tuple[str, str] | None:
        """Return the warning why a call cannot use the cache over steps, or None."""
        if step.number is None:
            if denoising.has_schedule:
                return "cache off schedule", (
                    f"a timestep of {timestep:g} is on no list of its pipeline's scheduler, so the cache over steps "
                    "cannot tell its step, and such calls are computed"
                )
            return "cache without schedule", (
                "the cache over steps needs the number of steps, which only a pipeline with a scheduler knows, so all "
                f"steps are computed; {denoising.advice}"
            )
        if step.is_new_step:
            denoising.histories.next_step(continues=step.continues)
            if not step.continues:
                denoising.plan_steps(step, self._config)
                self._warn_of_useless_cache(denoising)
                self._warn_of_another_schedule(denoising)
        if self.foreign_forward:
            return "two caches", (
                f"other code replaced the forward of {self.foreign_forward}, as TeaCache and TaylorSeer do to skip "
                "blocks by themselves, so the cache over steps has no effect here; use one of the two"
            )
        if self.in_graph:
            return "cache with gradients", (
                "the cache over steps is for generating images, so steps that record gradients, as in training, are "
                "computed; call the model under paddle.no_grad()"
            )
        return None

    def _begin_cached_step(self, denoising: Denoising, step: Step) -> CachedStep | None:
        """Return the state of the cache over steps, or None with the reason logged."""
        histories = denoising.histories.lookup(self._latent_shape, self._conditioning)
        if denoising.histories.never_matches:
            self.state.warn_once(
                "cache never matches", f"{_CALLS_DIFFER}, so the cache over steps has no effect on them"
            )
            return None
        if not histories and self.denoiser is not None and stores_attention_maps(self.denoiser):
            self.state.warn_once(
                "cache with maps",
                "this pipeline reads the attention maps of each step, so all steps are computed; the cache over steps "
                "has no effect here",
            )
            return None
        number = step.number or 0
        is_planned = number in denoising.computed_steps or number >= denoising.num_steps
        is_kept = denoising.keeps(number) or self.state.record is not None
        return CachedStep(
            step.time, is_planned or not histories, is_kept, denoising.slope_at(number), denoising.has_slope, histories,
            record=None if self.state.record is None else partial(self.state.record, number),
        )  # fmt: skip

    def _warn_of_useless_cache(self, denoising: Denoising) -> None:
        """Warn if no step of a run is to be skipped."""
        cache, num_steps = self._config.cache, denoising.num_steps
        if len(denoising.computed_steps) < num_steps or self.state.record is not None:
            return
        if isinstance(cache, tuple):
            remedy = "list fewer steps"
        elif num_steps < MIN_STEPS:
            remedy = f"a fraction skips steps of {MIN_STEPS} or more that follow one another; list the computed steps"
        else:
            remedy = "give a greater fraction"
        self.state.warn_once(
            "nothing to skip",
            f"cache={format_setting(cache)} leaves nothing to skip in a denoising of {num_steps} steps, so they are "
            f"computed; {remedy}",
        )

    def _warn_of_another_schedule(self, denoising: Denoising) -> None:
        """Warn if a list of computed steps was chosen for other steps."""
        steps, scheduler = self._config.cache_steps, self._config.cache_scheduler
        if steps is not None and steps != denoising.num_steps:
            self.state.warn_once(
                "other steps",
                f"the list in cache is for {steps} steps and this denoising has {denoising.num_steps}, so its steps "
                "keep their places as fractions of the denoising; choose them again for so many "
                "(ppdiffusers_tome.tune)",
            )
        if scheduler is not None and scheduler != denoising.scheduler:
            self.state.warn_once(
                "other scheduler",
                f"the list in cache was chosen with {scheduler} and this pipeline has {denoising.scheduler}, with "
                "which other steps may matter; choose them again with it (ppdiffusers_tome.tune)",
            )

    def set_layout(self, parent: object, layout: Layout) -> None:
        """Set the layout of the blocks of a parent layer."""
        if min(layout.grid.height, layout.grid.width) < 0:
            require_eager("a dynamic height or width")
        self.layouts[parent] = layout

    def find_layout(self, block: Hashable, parent: object) -> Layout | None:
        """Return the layout of a block, also if a backward pass runs it alone."""
        if parent in self.layouts:
            self._block_layouts[block] = self.layouts[parent]
        return self._block_layouts.get(block)

    def find_reduction(self, block: BlockCall, tokens: paddle.Tensor) -> TokenReduction | None:
        """Match a block's tokens ``[batch, tokens, channels]`` or reuse a reduction; None: run unmerged."""
        config, layout = self._config, block.layout
        if self.timestep is None:
            self._warn_of_missing_timestep()
        if config.uses_progress and self.progress is None:
            return None
        num_merged = config.num_merged(layout.grid, layout.level, self.progress)
        if config.uses_progress:
            denoising = self.state.denoising()
            denoising.has_merged = bool(denoising.has_merged) or num_merged > 0
        if num_merged == 0 or not self._has_cells(layout.grid):
            return None
        if config.min_similarity is not None:
            require_eager("min_similarity")
        # While a program is traced, the same batch is fixed in some tensors and dynamic in others.
        batch = tokens.shape[0] if paddle.in_dynamic_mode() else None
        key = (None if config.reuse_blocks else block.layer, layout, batch)
        if self._reductions is not None and key in self._reductions:
            return self._reductions[key]
        if layout not in self._reducers:
            self._reducers[layout] = build_reducer(
                config, layout, num_merged, timestep=self.timestep, constants=self.state.constants
            )
        reduction = self._reducers[layout](tokens)
        if self._reductions is not None:
            self._reductions[key] = reduction
        return reduction

    def _warn_of_missing_timestep(self) -> None:
        if self._config.uses_progress:
            effect = "it runs unmerged, as its ratio changes over the denoising; give one ratio for all of it"
        elif self._config.cache:
            effect = "the cache over steps has no effect here; apply it to the whole model or its pipeline"
        elif self._shares_steps and paddle.in_dynamic_mode():
            effect = "reuse_steps has no effect here; reuse_blocks has"
        else:
            return
        self.state.warn_once(
            "timestep", f"this model, or part of one, does not report its timestep, so {effect}"
        )

    def _has_cells(self, grid: Grid) -> bool:
        """Return whether a grid has a cell; log it if not."""
        sx, sy, st = self._config.sx, self._config.sy, self._config.st
        if grid.num_cells(sx, sy, st) > 0:
            return True
        self.state.warn_once(
            "cell",
            f"a grid of {grid} tokens is smaller than one cell of {Grid(sy, sx, st)}, so its blocks run unmerged; use "
            f"{'more frames, ' if st > 1 else ''}a larger image or a smaller stride",
        )
        return False


class BlockCall:
    """One call of a block.

    Attributes:
        layer: the block.
        tokens: its input, ``[batch, tokens, channels]`` or ``[batch, channels, height, width]``; None once they are
            matched, and until a layer inside of the block gets them where that is the ``tokens_layer``.
        reduction: of the block's tokens; None if the block runs unmerged, or has not been matched yet.
        active: the merge point that runs now; None between them.
    """

    def __init__(
        self, call: DenoiserCall, layer: Hashable, layout: Layout, tokens: paddle.Tensor | None = None
    ) -> None:
        self.call, self.layer, self.layout, self.tokens = call, layer, layout, tokens
        self.is_matched = False
        self.reduction: TokenReduction | None = None
        self.active: PointCall | None = None

    def match(self) -> TokenReduction | None:
        """Match the block's tokens at the first use and return their reduction.

        Not earlier, as a DiT embeds its timestep inside its first block.
        """
        if self.is_matched or self.tokens is None:
            return self.reduction
        self.is_matched, tokens, self.tokens = True, self.tokens, None
        grid, state, shape = self.layout.grid, self.call.state, list(tokens.shape)
        if tokens.ndim == 4 and shape[2:] == [grid.height, grid.width]:
            tokens = tokens.flatten(2).transpose([0, 2, 1])
        if tokens.ndim == 3 and tokens.shape[1] == self.layout.num_tokens:
            self.reduction = self.call.find_reduction(self, tokens)
        else:
            prefix = f" behind {self.layout.prefix} others" if self.layout.prefix else ""
            state.warn_once(
                "tokens",
                f"a block got tokens of shape {shape} where its latent has {grid} tokens{prefix}; it runs unmerged",
            )
        for watch in WATCHERS if self.reduction is not None else ():
            watch(self)
        return self.reduction

    def run_unmerged(self, topic: str = "", reason: str = "") -> None:
        """Stop merging in this call of the block; log the reason once."""
        self.is_matched, self.tokens, self.reduction, self.active = True, None, None, None
        if topic:
            self.call.state.warn_once(topic, reason)


def require_eager(what: str, remedy: str = "apply_tome with one ratio and without it") -> None:
    """Refuse a feature that a traced program cannot contain.

    Raises:
        ToMeValueError: a program is being traced.
    """
    if not paddle.in_dynamic_mode():
        raise ToMeValueError(
            f"{what} cannot become part of a program, which fixes how many tokens merge; {remedy} before exporting"
        )
