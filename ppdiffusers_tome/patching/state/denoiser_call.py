"""One call of a denoiser, at a step of its denoising."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.paddle_compat import require_eager
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.pipeline_call import Denoising
from ppdiffusers_tome.patching.state.plan import Plan
from ppdiffusers_tome.patching.state.shared_values import CallIdentity, SharedValues
from ppdiffusers_tome.patching.state.steps import Step
from ppdiffusers_tome.settings.config import ToMeConfig


def list_step_settings(config: ToMeConfig, *, is_eager: bool) -> list[str]:
    """List the settings for which a call has to know its step."""
    names = {
        "a ratio that changes over the denoising, start or end": config.uses_progress,
        "a cache over steps": bool(config.cache),
        "reuse_steps": config.reuse_steps > 1 and is_eager,  # a program has no values while it is traced
    }
    return [name for name, is_used in names.items() if is_used]


class CallCache(Protocol):
    """The part of one call in the cache over steps."""

    stores_values: bool  # a later step may need them
    has_skipped: bool  # any layer
    chain_inputs: dict[str, Sequence[Any]]  # of each chain of blocks that runs now, by its path
    chain_outputs: dict[str, Sequence[Any]]  # of each that is skipped now, as predicted

    def skips(self, path: str) -> bool:
        """Return whether a layer is skipped, which requires an earlier step."""

    def predict(self, path: str) -> Any:
        """Return the value of a layer that is skipped."""

    def store(self, path: str, value: Any, *, has_slope: bool = True) -> None:
        """Store the value of a layer that ran."""


@dataclass(eq=False)
class DenoiserCall:
    """The state that blocks share in one call of their denoiser."""

    state: DenoiserState
    denoiser: Layer
    denoising: Denoising | None = None  # of the image; None outside of a pipeline
    identity: CallIdentity | None = None  # among the calls of a step; None where it shares nothing with other steps
    given_timestep: Any = None  # the timestep among the arguments, as it was given; None where they have none
    timestep: paddle.Tensor | None = None  # scalar or [batch]; None where the model has none
    # The next four are looked for only if a setting needs them.
    step: Step | None = None  # None outside of a pipeline, or at a timestep on no list
    progress: float | None = None  # from 0, pure noise, to 1, the image; None if unknown
    shared: SharedValues | None = None  # with other steps; None where the call shares nothing
    cached: CallCache | None = None  # of the cache over steps
    # Of the tokens of blocks, by the ``GridOverride`` of the layer that gets their latent; none where it is no grid.
    layouts: dict[object, Layout] = field(default_factory=dict)
    plans: dict[Layout, Plan] = field(default_factory=dict)
    is_eager: bool = field(default_factory=paddle.in_dynamic_mode)  # False while ``to_static`` traces the call

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """Set the timestep, the first that the model embeds; ignore later ones.

        Settings that depend on the step read it, which waits for the device.
        """
        if self.timestep is not None:
            return
        self.timestep = timestep
        settings = list_step_settings(self.state.config, is_eager=self.is_eager)
        if settings and self.shared is None:  # else it is the call of a ``TwinCall``, whose step is known
            remedy = "apply_tome with one ratio and without start, end and cache"
            require_eager(settings[0], remedy, why="as it depends on the step")
            self._enter_step(float(timestep.reshape([-1])[0]))

    def _enter_step(self, timestep: float) -> None:
        """Find the step of the call that begins; warn where it is unknown."""
        state, highest = self.state, self.state.max_timestep
        if self.denoising is not None and (step := self.denoising.enter_step(timestep)) is not None:
            self.step, self.progress = step, step.progress
            if self.identity is not None:
                self.shared = self.denoising.share_values(step, self.identity)
            return
        if self.denoising is None and 0 <= timestep <= highest:
            self.progress = (highest - timestep) / highest
        elif state.config.uses_progress:
            state.warn_once(
                "the timestep of a call is on no list of its pipeline's scheduler or, without a pipeline, outside 0 to "
                f"{highest:g}, so the progress of the denoising is unknown and it runs unmerged; call the model "
                "through a pipeline that returns its images (if you replaced the __call__ of its class, call "
                "ppdiffusers_tome.install() again), or give one ratio for the whole denoising"
            )
        if self.identity is not None:
            state.warn_once(
                "steps are known only in a call of a pipeline, at timesteps on the list of its scheduler, so cache and "
                "reuse_steps have no effect here"
            )

    def read_timestep(self) -> None:
        """Set the timestep that is among the arguments, if one is."""
        given = self.given_timestep
        if isinstance(given, (int, float)):
            given = paddle.to_tensor([given])
        if paddle.is_tensor(given) and len(given.shape) <= 1:
            self.set_timestep(given)

    def end(self) -> None:
        """Warn of settings without effect, and count the call that ended."""
        if self.timestep is None and (settings := list_step_settings(self.state.config, is_eager=self.is_eager)):
            self.state.warn_once(
                f"this model does not report its timestep, so these have no effect: {', '.join(settings)}; where its "
                "ratio changes over the denoising it runs unmerged, so give one ratio"
            )
        if self.denoising is not None:
            self.denoising.count_call(self.step, is_skipped=self.cached is not None and self.cached.has_skipped)

    def find_plan(self, layout: Layout) -> Plan:
        """Return the plan of a layout; warn where nothing can merge."""
        if layout not in self.plans:
            self.plans[layout] = Plan(self.state.config, layout, self._count_merged(layout.grid))
        plan = self.plans[layout]
        plan.timestep = self.timestep  # which may be known only since tokens were counted
        return plan

    def _count_merged(self, grid: Grid) -> int:
        """Count the tokens that merge at this step; warn of a small grid."""
        config = self.state.config
        if config.uses_progress and self.progress is None:
            return 0
        num_merged = config.num_merged(grid, self.progress)
        if grid.width < config.sx or grid.height < config.sy or grid.frames < config.st:
            if num_merged > 0:
                self.state.warn_once(
                    f"a grid of {grid} tokens is smaller than one cell of {Grid(config.sy, config.sx, config.st)}, so "
                    "its blocks run unmerged; use a larger image, more frames or a smaller stride"
                )
            return 0
        if self.denoising is not None and grid.num_merged(config.highest_ratio) > 0:
            self.denoising.note_step(merges=num_merged > 0)
        return num_merged
