"""The state of one call of a denoiser."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class DenoiserCall:
    """The state that blocks share in one call of their denoiser.

    Attributes:
        state: of the denoiser.
        denoiser: the layer that is called.
        pipeline_call: in which it is called, or None.
        is_recomputing: True where a backward pass runs it again.
        latent_shape, conditioning: what identifies the call among those of the previous step.
        timestep: scalar or ``[batch]``; None where the model has none.
        denoising: of the image; None if no setting needs the step, or outside of a pipeline.
        step: of the denoising; None if no setting needs it, or it is unknown.
        progress: of the denoising, like ``step``.
        layouts: of the blocks, by the override of the layer that gets their latent; None where they have no grid.
        cached_call: of the cache over steps; None where all layers run.
        shared_reductions: what ``reuse_steps`` shares, by block, layout and batch; None where it shares nothing.
        is_eager: False while ``to_static`` traces the call.
        records_gradients: True if gradients may be computed; with gradient checkpointing a first run records none.
    """

    state: DenoiserState
    denoiser: Layer
    pipeline_call: PipelineCall | None = None
    is_recomputing: bool = False
    latent_shape: Sequence[int] = ()
    conditioning: Sequence[paddle.Tensor] = ()
    timestep: paddle.Tensor | None = None
    denoising: Denoising | None = None
    step: Step | None = None
    progress: float | None = None
    layouts: dict[object, Layout | None] = field(default_factory=dict)
    cached_call: CachedCall | None = None
    shared_reductions: dict[Any, TokenReduction] | None = None
    is_eager: bool = field(default_factory=paddle.in_dynamic_mode)
    records_gradients: bool = field(default_factory=lambda: paddle.in_dynamic_mode() and paddle.is_grad_enabled())
    _num_merged: dict[Layout, int] = field(default_factory=dict)
    _reducers: dict[Layout, Reducer] = field(default_factory=dict)

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """Set the timestep, the first that the model embeds; ignore later ones.

        Settings that depend on the step read it, which waits for the device.
        """
        if self.timestep is not None:
            return
        self.timestep = timestep
        settings = self._list_step_settings()
        if not settings:
            return
        require_eager(settings[0])
        if self.is_recomputing:
            raise ToMeValueError(
                f"{settings[0]} needs the step of each call, which is unknown where a backward pass runs the whole "
                "denoiser again; checkpoint its blocks (enable_gradient_checkpointing), or apply_tome with one ratio "
                "and without it"
            )
        self._begin_step(float(timestep.reshape([-1])[0]))

    def _list_step_settings(self) -> list[str]:
        """List the settings that need the step."""
        config = self.state.config
        names = {
            "a ratio that changes over the denoising, start or end": config.uses_progress,
            "a cache over steps": bool(config.cache),
            "reuse_steps": config.reuse_steps > 1 and self.is_eager,  # a program has no values while it is traced
        }
        return [name for name, is_used in names.items() if is_used]

    def _begin_step(self, timestep: float) -> None:
        """Find the step of this call, its progress and shared values."""
        config, highest = self.state.config, self.state.max_timestep
        if self.pipeline_call is not None:
            self.denoising = self.pipeline_call.find_denoising(self.state, self.denoiser)
        if self.denoising is not None:
            self.step = self.denoising.find_step(timestep)
        if self.step is not None:
            self.progress = self.step.progress
        elif self.denoising is None and 0 <= timestep <= highest:
            self.progress = (highest - timestep) / highest
        elif config.uses_progress:
            self.state.warn_once(
                "the timestep of a call is on no list of its pipeline's scheduler or, without a pipeline, outside 0 to "
                f"{highest:g}, so the progress of the denoising is unknown and it runs unmerged; call the model "
                "through a pipeline that returns its images (if you replaced the __call__ of its class, call "
                "ppdiffusers_tome.install() again), or give one ratio for the whole denoising"
            )
        if config.shares_steps and not self.records_gradients:  # of random timesteps and images, in training
            self._share_values()

    def _share_values(self) -> None:
        """Find what earlier steps left for this call, or warn."""
        if self.denoising is None or self.step is None:
            self.state.warn_once(
                "steps are known only in a call of a pipeline, at timesteps on the list of its scheduler, so cache and "
                "reuse_steps have no effect here"
            )
            return
        values = self.denoising.memory.begin_call(self.latent_shape, self.conditioning)
        if self.state.config.reuse_steps > 1:
            self.shared_reductions = values.reductions
        if self.state.config.cache:
            self.cached_call = CachedCall(self.step, self.denoising.skipped_steps, values.histories)

    def end(self) -> None:
        """Count a call that ended, for the report of its image."""
        settings = self._list_step_settings()
        if self.timestep is None and settings:
            self.state.warn_once(
                f"this model does not report its timestep, so these have no effect: {', '.join(settings)}; where its "
                "ratio changes over the denoising it runs unmerged, so give one ratio"
            )
        if self.denoising is not None:
            is_skipped = self.cached_call is not None and self.cached_call.has_skipped
            self.denoising.count_call(self.step, is_skipped=is_skipped)

    def find_reduction(self, block: Hashable, layout: Layout, tokens: paddle.Tensor) -> TokenReduction | None:
        """Return the reduction of a block's tokens; None: run unmerged."""
        if layout not in self._num_merged:
            self._num_merged[layout] = self._count_merged(layout)
        if self._num_merged[layout] == 0:
            return None
        key = (block, layout, tokens.shape[0])
        # What steps do not share is not kept: a block matches once, and memory is short.
        shared = {} if self.shared_reductions is None else self.shared_reductions
        if key not in shared:
            if layout not in self._reducers:
                self._reducers[layout] = build_reducer(
                    self.state.config, layout, self._num_merged[layout], timestep=self.timestep,
                    constants=self.state.constants,
                )  # fmt: skip
            shared[key] = self._reducers[layout](tokens)
        return shared[key]

    def _count_merged(self, layout: Layout) -> int:
        """Count a layout's tokens that merge; warn where none can."""
        config, grid = self.state.config, layout.grid
        if config.uses_progress and self.progress is None:
            return 0
        num_merged = config.num_merged(grid, self.progress)
        if grid.num_cells(config.sx, config.sy, config.st) == 0:
            if num_merged > 0:
                self.state.warn_once(
                    f"a grid of {grid} tokens is smaller than one cell of {Grid(config.sy, config.sx, config.st)}, so "
                    "its blocks run unmerged; use a larger image, more frames or a smaller stride"
                )
            return 0
        if self.denoising is not None and grid.num_merged(config.highest_ratio) > 0:
            self.denoising.ratio_merges.add(num_merged > 0)
        return num_merged
