"""The state of one call of a denoiser."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.chosen_keys import TokenReduction
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.paddle_compat import require_eager
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.pipeline_call import Denoising, PipelineCall
from ppdiffusers_tome.patching.state.reducer import Reducer, build_reducer
from ppdiffusers_tome.patching.state.step_cache import CachedCall
from ppdiffusers_tome.patching.state.steps import Step


class DenoiserCall:
    """The state that blocks share in one call of their denoiser.

    Args:
        state: of the denoiser.
        denoiser: the layer that is called.
        pipeline_call: in which it is called, or None.
        is_recomputing: True where a backward pass runs it again.
        latent_shape, conditioning: what identifies the call among those of the previous step.

    Attributes:
        timestep: scalar or ``[batch]``; None where the model has none.
        timestep_value: of the first image, where a setting needs the step.
        denoising: of the image; None if no setting needs the step, or outside of a pipeline.
        step: of the denoising; None if no setting needs it, or it is unknown.
        layouts: of the blocks, by the override of the layer that gets their latent; None where they have no grid.
        cached_call: of the cache over steps; None where all layers run.
        is_eager: False while ``to_static`` traces the call.
        records_gradients: True if gradients may be computed.
    """

    def __init__(
        self, state: DenoiserState, denoiser: Layer, pipeline_call: PipelineCall | None = None, *,
        is_recomputing: bool = False, latent_shape: Sequence[int] = (), conditioning: Sequence[paddle.Tensor] = (),
    ) -> None:  # fmt: skip
        self.state, self.denoiser, self._config = state, denoiser, state.config
        self._pipeline_call, self._is_recomputing = pipeline_call, is_recomputing
        self.latent_shape, self.conditioning = latent_shape, conditioning
        self.timestep: paddle.Tensor | None = None
        self.timestep_value = 0.0
        self.denoising: Denoising | None = None
        self.step: Step | None = None
        self._progress: float | None = None
        self.layouts: dict[object, Layout | None] = {}
        self.cached_call: CachedCall | None = None
        self.is_eager = paddle.in_dynamic_mode()
        self.records_gradients = self.is_eager and paddle.is_grad_enabled()
        self._num_merged: dict[Layout, int] = {}
        self._reducers: dict[Layout, Reducer] = {}
        # What ``reuse_steps`` shares over steps, by block, layout and batch; None where it shares nothing.
        self._shared_reductions: dict[Any, TokenReduction] | None = None

    def require_one_mode(self) -> None:
        """Refuse to merge where only some layers are traced.

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
        settings = self._list_step_settings()
        if not settings:
            return
        require_eager(settings[0])
        if self._is_recomputing:
            raise ToMeValueError(
                f"{settings[0]} needs the step of each call, which is unknown where a backward pass runs the whole "
                "denoiser again; checkpoint its blocks (enable_gradient_checkpointing), or apply_tome with one ratio "
                "and without it"
            )
        self.timestep_value = float(timestep.reshape([-1])[0])
        self._begin_step()

    def _list_step_settings(self) -> list[str]:
        """List the settings that need the step."""
        ramp = ["a ratio that changes over the denoising, start or end"] if self._config.uses_progress else []
        return ramp + self._list_sharing_settings()

    def _list_sharing_settings(self) -> list[str]:
        """List the settings with which steps share values."""
        names = {
            "a cache over steps": bool(self._config.cache),
            "reuse_steps": self._config.reuse_steps > 1 and self.is_eager,  # a program has no values while it is traced
        }
        return [name for name, is_used in names.items() if is_used]

    def _begin_step(self) -> None:
        """Find the step of this call, its progress and shared values."""
        timestep, highest = self.timestep_value, self.state.max_timestep
        if self._pipeline_call is not None:
            self.denoising = self._pipeline_call.find_denoising(self.state, self.denoiser)
        if self.denoising is not None:
            self.step = self.denoising.find_step(timestep)
        if self.step is not None and self.step.progress is not None:
            self._progress = self.step.progress
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
        if self._config.shares_steps:
            self._share_values()

    def _share_values(self) -> None:
        """Find what earlier steps left for this call, or warn."""
        denoising, step = self.denoising, self.step
        if denoising is None or step is None:
            if not self.records_gradients:  # training runs without a pipeline
                self._warn_unshared("steps are known only in a call of a pipeline with a scheduler")
            return
        if step.is_new_step:
            denoising.memory.begin_step(continues=step.continues)
            denoising.cache.begin_step(self.denoiser, step)
        if step.number is None:
            self._warn_unshared("the timestep of a call is on no list of its pipeline's scheduler")
            return
        if self.records_gradients:  # of random timesteps and images, in training
            self._warn_unshared("a call that records gradients shares nothing with other steps (use paddle.no_grad())")
            return
        values = denoising.memory.begin_call(self.latent_shape, self.conditioning)
        if self._config.reuse_steps > 1:
            self._shared_reductions = values.reductions
        if denoising.memory.never_matches:
            self._warn_unshared(
                "this model's calls cannot be told apart from step to step, as what it is given beside its latents is "
                "new in every step, or the same in several calls of one"
            )
        elif self._config.cache:
            self.cached_call = denoising.cache.begin_call(step, values.histories)

    def _warn_unshared(self, obstacle: str) -> None:
        """Warn that steps share nothing, and of the settings without effect."""
        for setting in self._list_sharing_settings():
            self.state.warn_once(f"{setting}: {obstacle}", f"{obstacle}, so {setting} has no effect here")

    def end(self) -> None:
        """Count a call that ended, for the report of its image."""
        settings = self._list_step_settings()
        if self.timestep is None and settings:
            self.state.warn_once(
                "timestep",
                f"this model does not report its timestep, so these have no effect: {', '.join(settings)}; where its "
                "ratio changes over the denoising it runs unmerged, so give one ratio",
            )
        if self._config.cache and self.denoising is not None:
            self.denoising.cache.end_call(self.step, self.cached_call)

    def find_reduction(self, block: Hashable, layout: Layout, tokens: paddle.Tensor) -> TokenReduction | None:
        """Return the reduction of a block's tokens; None: run unmerged."""
        if layout not in self._num_merged:
            self._num_merged[layout] = self._count_merged(layout)
        if self._num_merged[layout] == 0:
            return None
        if paddle.in_dynamic_mode() != self.is_eager:
            self.require_one_mode()
        # While a program is traced, the same batch is fixed in some tensors and dynamic in others.
        batch = tokens.shape[0] if paddle.in_dynamic_mode() else None
        key = (block, layout, batch)
        # What steps do not share is not kept: a block matches once, and memory is short.
        shared = {} if self._shared_reductions is None else self._shared_reductions
        if key not in shared:
            if layout not in self._reducers:
                self._reducers[layout] = build_reducer(
                    self._config, layout, self._num_merged[layout], timestep=self.timestep,
                    constants=self.state.constants,
                )  # fmt: skip
            shared[key] = self._reducers[layout](tokens)
        return shared[key]

    def _count_merged(self, layout: Layout) -> int:
        """Count a layout's tokens that merge; warn where none can."""
        config, grid = self._config, layout.grid
        if config.uses_progress and self._progress is None:
            return 0
        num_merged = config.num_merged(grid, self._progress)
        if grid.num_cells(config.sx, config.sy, config.st) == 0:
            if num_merged > 0:
                self._warn_of_small_grid(grid)
            return 0
        if self.denoising is not None and grid.num_merged(config.highest_ratio) > 0:
            self.denoising.ratio_merges.add(num_merged > 0)
        return num_merged

    def _warn_of_small_grid(self, grid: Grid) -> None:
        config = self._config
        self.state.warn_once(
            "cell",
            f"a grid of {grid} tokens is smaller than one cell of {Grid(config.sy, config.sx, config.st)}, so its "
            f"blocks run unmerged; use {'more frames, ' if config.st > 1 else ''}a larger image or a smaller stride",
        )
