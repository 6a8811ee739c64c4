"""The state of one denoiser over the steps of one image."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.state.progress import SchedulerTracker, TimestepTracker
from ppdiffusers_tome.patching.step_cache import StepCache
from ppdiffusers_tome.patching.step_memory import StepMemory

if TYPE_CHECKING:
    import paddle

    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
    from ppdiffusers_tome.settings.config import ToMeConfig


class Denoising:
    """The state of one denoiser over the steps of one denoising.

    Args:
        state: of the denoiser.
        tracker: of the steps.
        scheduler: of the pipeline, or None.
        advice: what to do where no schedule tells the steps.
        has_end: False without a pipeline, as in training; such a denoising is not reported, and keeps no steps.

    Attributes:
        matchings: the reductions that steps share.
        cache: over steps.
        grids: tensors whose values describe a grid, their versions, and the grid, by the parent of blocks.
        steps: by progress the steps that ran, where a setting needs it: whether the ratio lets tokens merge in them,
            None where no block ran.
        has_merged: True once tokens merged, where a setting needs the step.
    """

    def __init__(
        self, state: DenoiserState, tracker: SchedulerTracker | TimestepTracker, scheduler: Any = None,
        advice: str = "this pipeline shows none", *, has_end: bool = True,
    ) -> None:  # fmt: skip
        self.tracker, self.advice, self._has_end = tracker, advice, has_end
        self.matchings = StepMemory(state.config.reuse_steps)
        has_schedule = isinstance(tracker, SchedulerTracker)
        self.cache = StepCache(state.config, scheduler, None if has_schedule else advice)
        self.grids: dict[Hashable, tuple[Sequence[paddle.Tensor], Sequence[int], Grid | None]] = {}
        self.steps: dict[float, bool | None] = {}
        self.has_merged = False

    def add_step(self, progress: float, *, merges: bool | None = None) -> None:
        """Add a step, and whether tokens of a grid merge in it."""
        known = self.steps.get(progress)
        if self._has_end:
            self.steps[progress] = known or merges if merges is not None else known

    def explain_useless_bounds(self, config: ToMeConfig) -> str | None:
        """Explain a ``start`` or ``end`` without effect, if any."""
        merges = [each for each in self.steps.values() if each is not None]
        if (config.start, config.end) == (0, 1) or not merges:
            return None
        if not any(merges):
            return (
                f"nothing merged in any step of this image with start={config.start:g} and end={config.end:g}: img2img "
                "runs only the last part of the denoising, few steps may all lie outside, and a cache may skip those "
                "inside; choose another start or end"
            )
        first, last, is_always_merged = min(self.steps), max(self.steps), self.has_merged and all(merges)
        if is_always_merged and last < config.end < 1:
            return (
                f"end={config.end:g} leaves no step of this image unmerged: the last step begins at {last:.3g} of the "
                "denoising; choose a smaller end or more steps"
            )
        if is_always_merged and 0 < config.start <= first:
            return (
                f"start={config.start:g} leaves no step of this image unmerged: the first step begins at {first:.3g} "
                "of the denoising; choose a greater start"
            )
        return None
