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
        scheduler: of the pipeline; None for calls of a denoiser by itself.

    Attributes:
        advice: what to do where no schedule tells the steps.
        matchings: the reductions that steps share.
        cache: over steps.
        grids: tensors whose values describe a grid, their versions, and the grid, by the parent of blocks.
        has_merged: whether tokens merged in a block that ran; None before.
        progress: of all steps of a pipeline that ran, where a setting needs it.
    """

    def __init__(
        self, state: DenoiserState, tracker: SchedulerTracker | TimestepTracker, scheduler: Any = None, *,
        is_of_pipeline: bool = True,
    ) -> None:  # fmt: skip
        self.tracker, self.is_of_pipeline = tracker, is_of_pipeline
        remedy = "call the model through a pipeline that returns its images"  # a generator ends before its steps run
        self.advice = "this pipeline shows none" if is_of_pipeline else remedy
        self.matchings = StepMemory(state.config.reuse_steps)
        has_schedule = isinstance(tracker, SchedulerTracker)
        self.cache = StepCache(state.config, state.family, scheduler, None if has_schedule else self.advice)
        self.grids: dict[Hashable, tuple[Sequence[paddle.Tensor], Sequence[int], Grid | None]] = {}
        self.has_merged: bool | None = None
        self.progress: set[float] = set()

    def explain_bounds(self, config: ToMeConfig) -> str | None:
        """Explain a ``start`` or ``end`` that suits no step; None otherwise."""
        if self.has_merged is False:
            return (
                f"nothing merged in any step of this image with start={config.start:g} and end={config.end:g}: img2img "
                "runs only the last part of the denoising, and few steps may all lie outside; choose another start or "
                "end"
            )
        if not self.has_merged or not self.progress:
            return None
        first, last, steps = min(self.progress), max(self.progress), f"step of {len(self.progress)} begins at"
        if config.end < 1 and last < config.end:
            return (
                f"end={config.end:g} leaves no step of this image unmerged: the last {steps} {last:.3g} of the "
                "denoising; choose a smaller end or more steps"
            )
        if 0 < config.start <= first:
            return (
                f"start={config.start:g} leaves no step of this image unmerged: the first {steps} {first:.3g} of the "
                "denoising; choose a greater start"
            )
        return None
