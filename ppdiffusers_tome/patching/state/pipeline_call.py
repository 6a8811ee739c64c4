"""A call of a pipeline, and the denoisings of its denoisers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from paddle.nn import Layer

from ppdiffusers_tome.patching.models import list_models, list_schedulers
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.step_cache import choose_skipped_steps
from ppdiffusers_tome.patching.state.step_memory import StepMemory, StepReport, count_bytes
from ppdiffusers_tome.patching.state.steps import Schedule, Step, StepFinder

# Schedulers whose list ends with the finished image, for which no denoiser is called.
_END_IN_LIST = ("DDPMWuerstchenScheduler",)


class Denoising:
    """The calls of one denoiser in a call of its pipeline.

    Args:
        pipe: the pipeline.
        name: of the denoiser in it.
        denoiser, state: the denoiser.

    Attributes:
        memory: what these calls share over steps.
        skipped_steps: those of the present run that the cache over steps skips, by number.
        ratio_merges: whether the ratio let tokens merge in its steps in which blocks ran: True, False or both.
    """

    def __init__(self, pipe: Any, name: str, denoiser: Layer, state: DenoiserState) -> None:
        self._pipe, self._name, self._denoiser, self._state = pipe, name, denoiser, state
        self._finder = StepFinder()
        self._schedules: dict[int, Schedule] = {}
        self._report = StepReport()
        self.memory = StepMemory(state.config.reuse_steps)
        self.skipped_steps: frozenset[int] = frozenset()
        self.ratio_merges: set[bool] = set()

    def find_step(self, timestep: float) -> Step | None:
        """Return the step of the call that begins; None on no list."""
        schedulers = list(list_schedulers(self._pipe, self._name))
        schedules = [self._read_schedule(scheduler) for scheduler in schedulers]
        # Pipelines with ``denoising_end`` cut their list, which their scheduler does not know.
        step = self._finder.find_step(schedules, timestep, vars(self._pipe).get("_num_timesteps"))
        if step is not None and step.is_new_step:
            self.memory.begin_step(continues=step.continues)
            if not step.continues and self._state.config.cache:
                self.skipped_steps = choose_skipped_steps(self._state, self._denoiser, schedulers[0], step.num_steps)
        return step

    def _read_schedule(self, scheduler: Any) -> Schedule:
        """Read a list of timesteps once, as that waits for the device."""
        source = scheduler.timesteps
        if id(source) not in self._schedules:
            array = source.astype("float64").numpy() if hasattr(source, "numpy") else np.asarray(source, "float64")
            numbers = array.reshape(-1).tolist()
            lists_the_end = any(cls.__name__ in _END_IN_LIST for cls in type(scheduler).__mro__)
            self._schedules[id(source)] = Schedule(source, numbers[:-1] if lists_the_end else numbers)
        return self._schedules[id(source)]

    def count_call(self, step: Step | None, *, is_skipped: bool) -> None:
        """Count a call that ended."""
        steps = () if step is None or is_skipped else (step.number,)
        self._report += StepReport(int(not is_skipped), int(is_skipped), computed_steps=steps)

    def end(self, *, is_complete: bool) -> None:
        """Report cached steps; warn of settings that had no effect."""
        state, config = self._state, self._state.config
        if config.cache:
            histories = (history for kept in self.memory.values for history in kept.histories.values())
            state.last_image = replace(self._report, cache_bytes=count_bytes(histories))
        if not is_complete or vars(self._pipe).get("_interrupt"):
            return
        if config.shares_steps and self.memory.shares_nothing:
            state.warn_once(
                "the steps of this image shared nothing, so cache and reuse_steps have no effect here: calls that "
                "record gradients do not (use paddle.no_grad()), nor those that cannot be told apart from step to "
                "step, as what they get beside the latents is new in every step, or the same in several calls of one"
            )
        if (config.start > 0 or config.end < 1) and len(self.ratio_merges) == 1:
            state.warn_once(
                f"{'every' if True in self.ratio_merges else 'no'} step of this image merges with "
                f"start={config.start:g} and end={config.end:g}: img2img runs only the last part of the "
                "denoising, of N steps the last begins at 1 - 1/N, and a cache may skip those inside; choose other "
                "bounds, or more steps"
            )


class PipelineCall:
    """A call of a pipeline, with the denoisings of its denoisers."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._denoisings: dict[DenoiserState, Denoising | None] = {}

    def find_denoising(self, state: DenoiserState, denoiser: Layer) -> Denoising | None:
        """Return a denoiser's denoising in this call, or None.

        A pipeline without a scheduler has none, nor has a model that a callback calls: the steps are not its own.
        """
        if state not in self._denoisings:
            names = (
                name for name, model in list_models(self._pipe)
                if any(layer is denoiser for layer in model.sublayers(include_self=True))
                and list(list_schedulers(self._pipe, name))  # whose length may be undefined
            )  # fmt: skip
            name = next(names, None)
            self._denoisings[state] = None if name is None else Denoising(self._pipe, name, denoiser, state)
        return self._denoisings[state]

    def end(self, *, is_complete: bool) -> None:
        """End the denoisings and free all that they share."""
        denoisings, self._denoisings = self._denoisings, {}
        for denoising in filter(None, denoisings.values()):
            denoising.end(is_complete=is_complete)
