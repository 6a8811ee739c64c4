"""The state of one call of a denoiser or a block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.kv_reduction import TokenReduction
from ppdiffusers_tome.patching.state.call_stack import CALL_STACK
from ppdiffusers_tome.patching.state.reducer import Reducer, build_reducer
from ppdiffusers_tome.patching.step_memory import CALLS_DIFFER

if TYPE_CHECKING:
    from paddle.nn import Layer

    from ppdiffusers_tome.patching.overrides.merge import PointCall
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
    from ppdiffusers_tome.patching.step_cache import CachedStep

# Called with every ``BlockCall`` in which tokens merge, of all denoisers.
WATCHERS: list[Callable[[BlockCall], None]] = []


class DenoiserCall:
    """The state that blocks share in one call of their denoiser.

    ``latent_shape`` and ``conditioning`` identify it among the calls of the previous step.

    Attributes:
        denoiser: the layer that is called.
        timestep: scalar or ``[batch]``; None where the model has none.
        timestep_argument: of the denoiser's call, for models that embed it inside their first block.
        progress: of the denoising, 0 to 1; None if no setting needs it, or it is unknown.
        layouts: of the blocks, by the override of the layer that gets their latent.
        block: the block that runs now; None between blocks.
        cached_step: of the cache over steps; None where all layers run.
        in_graph: True if gradients may be computed.
    """

    def __init__(
        self, state: DenoiserState, latent_shape: Sequence[int] = (), conditioning: Sequence[paddle.Tensor] = (), *,
        denoiser: Layer | None = None,
    ) -> None:  # fmt: skip
        self.state, self._config = state, state.config
        self.latent_shape, self.conditioning, self.denoiser = latent_shape, conditioning, denoiser
        # Training uses random timesteps and images.
        self._shares_steps = self._config.reuse_steps > 1 and not (denoiser is not None and denoiser.training)
        self._uses_progress = self._config.uses_progress
        self.timestep: paddle.Tensor | None = None
        self.timestep_argument: paddle.Tensor | None = None
        self.progress: float | None = None
        self.layouts: dict[object, Layout] = {}
        self.block: BlockCall | None = None
        self.cached_step: CachedStep | None = None
        self._step_number: int | None = None
        self.in_graph = paddle.in_dynamic_mode() and paddle.is_grad_enabled()
        self._counts: dict[Layout, int] = {}  # of tokens that merge
        self._reducers: dict[Layout, Reducer] = {}
        # Reductions to reuse, by block (None for all), layout and batch; None where nothing is reused.
        self._reductions: dict[Any, TokenReduction | None] | None = {} if self._config.reuse_blocks else None

    @property
    def point(self) -> PointCall | None:
        """The call of a merge point that runs now; None between them."""
        return None if self.block is None else self.block.point

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """Set the timestep, the first that the model embeds; ignore later ones.

        Settings that depend on the step read it, which waits for the device.
        """
        if self.timestep is not None:
            return
        self.timestep = timestep
        if self._uses_progress:
            setting = "a ratio that changes over the denoising, start or end"
        elif self._config.cache:
            setting = "a cache over steps"
        elif self._shares_steps and paddle.in_dynamic_mode():
            setting = "reuse_steps"
        else:
            return
        require_eager(setting)
        if CALL_STACK.is_recomputing:
            raise ToMeValueError(
                f"{setting} needs the step of each call, which is unknown where a backward pass runs the whole "
                "denoiser again; checkpoint its blocks (enable_gradient_checkpointing), or apply_tome with one ratio "
                "and without it"
            )
        self._begin_step(float(timestep.reshape([-1])[0]))

    def _begin_step(self, timestep: float) -> None:
        """Find the step of this call, and what it shares with earlier steps."""
        denoising = self.state.denoising()
        step = denoising.tracker.step_at(timestep)
        self.progress, self._step_number = step.progress, step.number
        if step.progress is not None and denoising.is_of_pipeline:
            denoising.progress.add(step.progress)
        if step.progress is None and self._uses_progress:
            self.state.warn_once(
                "progress",
                f"a timestep of {timestep:g} is outside 0 to {self.state.max_timestep:g}, so the progress of the "
                f"denoising is unknown, and the model runs unmerged; {denoising.advice}, or give one ratio for the "
                "whole denoising",
            )
        if self._shares_steps:
            if step.is_new_step:
                denoising.matchings.next_step(continues=step.continues)
            self._reductions = denoising.matchings.lookup(self.latent_shape, self.conditioning)
            if denoising.matchings.never_matches:
                self.state.warn_once("no reuse", f"{CALLS_DIFFER}, so reuse_steps has no effect here; reuse_blocks has")
        if self._config.cache:
            self.cached_step = denoising.cache.begin_call(self, step, timestep)

    def find_cached_step(self) -> CachedStep | None:
        """Return the step of the cache; None where all layers run."""
        if self.timestep is None and self.timestep_argument is not None:
            self.set_timestep(self.timestep_argument)
        return self.cached_step

    def end(self) -> None:
        """Count a call that ended, for the report of its image."""
        if not self._config.cache:
            return
        if self.timestep is None:
            self._warn_of_missing_timestep()
        is_skipped = self.cached_step is not None and self.cached_step.has_skipped
        self.state.denoising().cache.report.count(self._step_number, is_skipped=is_skipped)

    def find_reduction(self, block: BlockCall, tokens: paddle.Tensor) -> TokenReduction | None:
        """Return the reduction of ``[batch, tokens, channels]``; None: run unmerged."""
        config, layout = self._config, block.layout
        if layout not in self._counts:
            self._counts[layout] = self._count_merged(layout)
        if self._counts[layout] == 0:
            return None
        # While a program is traced, the same batch is fixed in some tensors and dynamic in others.
        batch = tokens.shape[0] if paddle.in_dynamic_mode() else None
        key = (None if config.reuse_blocks else block.layer, layout, batch)
        if self._reductions is not None and key in self._reductions:
            return self._reductions[key]
        if layout not in self._reducers:
            self._reducers[layout] = build_reducer(
                config, layout, self._counts[layout], timestep=self.timestep, constants=self.state.constants
            )
        reduction = self._reducers[layout](tokens)
        if self._reductions is not None:
            self._reductions[key] = reduction
        return reduction

    def _count_merged(self, layout: Layout) -> int:
        """Count a layout's tokens that merge; warn where none can."""
        config, grid = self._config, layout.grid
        if self.timestep is None:
            self._warn_of_missing_timestep()
        if self._uses_progress and self.progress is None:
            return 0
        num_merged = config.num_merged(grid, layout.level, self.progress)
        if self._uses_progress:
            denoising = self.state.denoising()
            denoising.has_merged = bool(denoising.has_merged) or num_merged > 0
        if num_merged > 0 and grid.num_cells(config.sx, config.sy, config.st) == 0:
            self.state.warn_once(
                "cell",
                f"a grid of {grid} tokens is smaller than one cell of {Grid(config.sy, config.sx, config.st)}, so its "
                f"blocks run unmerged; use {'more frames, ' if config.st > 1 else ''}a larger image or a smaller "
                "stride",
            )
            return 0
        if config.min_similarity is not None:
            require_eager("min_similarity")
        return num_merged

    def _warn_of_missing_timestep(self) -> None:
        if self._uses_progress:
            effect = "it runs unmerged, as its ratio changes over the denoising; give one ratio for all of it"
        elif self._config.cache:
            effect = "the cache over steps has no effect here; apply it to the whole model or its pipeline"
        elif self._shares_steps and paddle.in_dynamic_mode():
            effect = "reuse_steps has no effect here; reuse_blocks has"
        else:
            return
        self.state.warn_once("timestep", f"this model, or part of one, does not report its timestep, so {effect}")


class BlockCall:
    """One call of a block.

    Attributes:
        layer: the block.
        tokens: its input, ``[batch, tokens, channels]`` or ``[batch, channels, height, width]``; None once they are
            matched, and until a layer inside of the block gets them where that is the ``tokens_layer``.
        reduction: of the block's tokens; None if the block runs unmerged, or has not been matched yet.
        point: the call of a merge point that runs now; None between them.
    """

    def __init__(
        self, call: DenoiserCall, layer: Hashable, layout: Layout, tokens: paddle.Tensor | None = None
    ) -> None:
        self.call, self.layer, self.layout, self.tokens = call, layer, layout, tokens
        self.is_matched = False
        self.reduction: TokenReduction | None = None
        self.point: PointCall | None = None

    def match(self) -> TokenReduction | None:
        """Match the block's tokens at the first use and return their reduction.

        Not earlier, as a DiT embeds its timestep inside its first block.
        """
        if self.is_matched or self.tokens is None:
            return self.reduction
        self.is_matched, tokens, self.tokens = True, self.tokens, None
        grid, shape = self.layout.grid, list(tokens.shape)
        if tokens.ndim == 4 and shape[2:] == [grid.height, grid.width]:
            tokens = tokens.flatten(2).transpose([0, 2, 1])
        if tokens.ndim == 3 and tokens.shape[1] == self.layout.num_tokens:
            self.reduction = self.call.find_reduction(self, tokens)
        else:
            prefix = f" behind {self.layout.prefix} others" if self.layout.prefix else ""
            self.call.state.warn_once(
                "tokens",
                f"a block got tokens of shape {shape} where its latent has {grid} tokens{prefix}; it runs unmerged",
            )
        for watch in WATCHERS if self.reduction is not None else ():
            watch(self)
        return self.reduction

    def run_unmerged(self, topic: str = "", reason: str = "") -> None:
        """Stop merging in this call of the block; log the reason once."""
        self.is_matched, self.tokens, self.reduction, self.point = True, None, None, None
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
