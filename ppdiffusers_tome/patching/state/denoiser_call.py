"""The state of one call of a denoiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.kv_reduction import TokenReduction
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.paddle_compat import require_eager
from ppdiffusers_tome.patching.state.reducer import Reducer, build_reducer
from ppdiffusers_tome.patching.step_memory import CALLS_DIFFER

if TYPE_CHECKING:
    from paddle.nn import Layer

    from ppdiffusers_tome.patching.state.block_call import BlockCall
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
    from ppdiffusers_tome.patching.state.denoising import Denoising
    from ppdiffusers_tome.patching.state.steps import Step
    from ppdiffusers_tome.patching.step_cache import CachedCall


class DenoiserCall:
    """The state that blocks share in one call of their denoiser.

    Args:
        state: of the denoiser.
        denoiser: the layer that is called.
        latent_shape, conditioning: what identifies the call among those of the previous step.

    Attributes:
        timestep: scalar or ``[batch]``; None where the model has none.
        denoising: of the image; None if no setting needs the step, or outside of a pipeline.
        step: of the denoising; None if no setting needs it, or it is unknown.
        layouts: of the blocks, by the override of the layer that gets their latent; None where they have no grid.
        cached_call: of the cache over steps; None where all layers run.
        is_eager: False while ``to_static`` traces the call.
        records_gradients: True if gradients may be computed.
    """

    def __init__(
        self, state: DenoiserState, denoiser: Layer, latent_shape: Sequence[int] = (),
        conditioning: Sequence[paddle.Tensor] = (),
    ) -> None:  # fmt: skip
        self.state, self.denoiser, self._config = state, denoiser, state.config
        self.latent_shape, self.conditioning = latent_shape, conditioning
        self.timestep: paddle.Tensor | None = None
        self.denoising: Denoising | None = None
        self.step: Step | None = None
        self._progress: float | None = None
        self.layouts: dict[object, Layout | None] = {}
        self.cached_call: CachedCall | None = None
        self.is_eager = paddle.in_dynamic_mode()
        self.records_gradients = self.is_eager and paddle.is_grad_enabled()
        self._counts: dict[Layout, int] = {}  # of tokens that merge
        self._reducers: dict[Layout, Reducer] = {}
        # By block, layout and batch; None instead of a dictionary where nothing is reused.
        self._reductions: dict[Any, TokenReduction] | None = None

    def require_one_mode(self) -> None:
        """Refuse to merge in a denoiser of which only some layers are traced.

        Raises:
            ToMeValueError: a value of a program that is being traced would be used outside, or the other way round.
        """
        if paddle.in_dynamic_mode() != self.is_eager:
            raise ToMeValueError(
                f"paddle.jit.to_static traces a layer inside of {type(self.denoiser).__name__}, and its tokens are "
                "matched outside of that program; trace the whole model, or remove_tome"
            )

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """Set the timestep, the first that the model embeds; ignore later ones.

        Settings that depend on the step read it, which waits for the device.
        """
        if self.timestep is not None:
            return
        self.require_one_mode()
        self.timestep = timestep
        setting = next(iter(self._list_step_settings()), None)
        if setting is None:
            return
        require_eager(setting)
        if CALL_STACK.is_recomputing:
            raise ToMeValueError(
                f"{setting} needs the step of each call, which is unknown where a backward pass runs the whole "
                "denoiser again; checkpoint its blocks (enable_gradient_checkpointing), or apply_tome with one ratio "
                "and without it"
            )
        self._begin_step(float(timestep.reshape([-1])[0]))

    def _list_step_settings(self) -> dict[str, str]:
        """List the settings that need the step, each with the effect without one."""
        settings = {}
        if self._config.uses_progress:
            settings["a ratio that changes over the denoising, start or end"] = (
                "it runs unmerged, as its ratio changes over the denoising; give one ratio for all of it"
            )
        if self._config.cache:
            settings["a cache over steps"] = "the cache over steps has no effect here"
        if self._config.reuse_steps > 1 and self.is_eager:  # a program that is being traced has no values yet
            settings["reuse_steps"] = "reuse_steps has no effect here"
        return settings

    def _begin_step(self, timestep: float) -> None:
        """Find the step of this call, and what it shares with earlier steps."""
        pipeline_call = CALL_STACK.pipeline_call
        denoising = None if pipeline_call is None else pipeline_call.find_denoising(self.state)
        step = None if denoising is None else denoising.find_step(timestep)
        self.denoising, self.step = denoising, step
        self._set_progress(timestep)
        if denoising is None or step is None:
            self._warn_of_missing_schedule()
            return
        if self._config.reuse_steps > 1 and step.is_new_step:
            denoising.matchings.next_step(continues=step.continues)
        # Under gradients nothing is shared, as training uses random timesteps and images.
        if self._config.reuse_steps > 1 and step.number is not None and not self.records_gradients:
            self._reductions = denoising.matchings.lookup(self.latent_shape, self.conditioning)
            if denoising.matchings.never_matches:
                self.state.warn_once("no reuse", f"{CALLS_DIFFER}, so reuse_steps has no effect here")
        if self._config.cache:
            self.cached_call = denoising.cache.begin_call(self, step, timestep)

    def _set_progress(self, timestep: float) -> None:
        """Set the progress, by the timestep where no schedule tells the step."""
        highest, step = self.state.max_timestep, self.step
        if step is not None and step.progress is not None:
            self._progress = step.progress
        elif 0 <= timestep <= highest:
            self._progress = (highest - timestep) / highest
        elif self._config.uses_progress:
            self.state.warn_once(
                "progress",
                f"a timestep of {timestep:g} is outside 0 to {highest:g}, so the progress of the denoising is unknown, "
                "and the model runs unmerged; call the model through a pipeline that returns its images (if you "
                "replaced the __call__ of its class, call ppdiffusers_tome.install() again), or give one ratio for the "
                "whole denoising",
            )
        if self.denoising is not None and self._progress is not None:
            self.denoising.add_step(self._progress)

    def _warn_of_missing_schedule(self) -> None:
        if self.records_gradients:
            return
        settings = {"the cache over steps": self._config.cache, "reuse_steps": self._config.reuse_steps > 1}
        for setting in (name for name, is_used in settings.items() if is_used):
            self.state.warn_once(
                f"{setting} without schedule",
                f"{setting} needs the steps of the denoising, which only a pipeline with a scheduler knows, so it has "
                "no effect here; call the model through its pipeline",
            )

    def end(self) -> None:
        """Count a call that ended, for the report of its image."""
        if not self._config.cache:
            return
        if self.timestep is None:
            self._warn_of_missing_timestep()
        if self.denoising is not None:
            self.denoising.cache.end_call(self.step, self.cached_call)

    def find_reduction(self, block: BlockCall, tokens: paddle.Tensor) -> TokenReduction | None:
        """Return the reduction of ``[batch, tokens, channels]``; None: run unmerged."""
        config, layout = self._config, block.layout
        if layout not in self._counts:
            self._counts[layout] = self._count_merged(layout)
        if self._counts[layout] == 0:
            return None
        if paddle.in_dynamic_mode() != self.is_eager:
            self.require_one_mode()
        # While a program is traced, the same batch is fixed in some tensors and dynamic in others.
        batch = tokens.shape[0] if paddle.in_dynamic_mode() else None
        key = (block.layer, layout, batch)
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
        progress = self._progress
        if config.uses_progress and progress is None:
            return 0
        num_merged = config.num_merged(grid, progress)
        if grid.num_cells(config.sx, config.sy, config.st) == 0:
            if num_merged > 0:
                self._warn_of_small_grid(grid)
            return 0
        may_merge = config.highest_ratio * grid.num_tokens >= 1
        if self.denoising is not None and progress is not None and may_merge:
            self.denoising.add_step(progress, merges=num_merged > 0)
        return num_merged

    def _warn_of_small_grid(self, grid: Grid) -> None:
        config = self._config
        self.state.warn_once(
            "cell",
            f"a grid of {grid} tokens is smaller than one cell of {Grid(config.sy, config.sx, config.st)}, so its "
            f"blocks run unmerged; use {'more frames, ' if config.st > 1 else ''}a larger image or a smaller stride",
        )

    def _warn_of_missing_timestep(self) -> None:
        effects = "; ".join(self._list_step_settings().values())
        if effects:
            self.state.warn_once("timestep", f"this model does not report its timestep, so {effects}")
