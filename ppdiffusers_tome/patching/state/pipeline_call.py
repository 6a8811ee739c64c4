"""A call of a pipeline, and the denoisings of its denoisers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from paddle.nn import Layer

from ppdiffusers_tome.patching.models import list_models, list_schedulers
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.step_cache import StepCache
from ppdiffusers_tome.patching.state.step_memory import StepMemory, StepReport, count_bytes
from ppdiffusers_tome.patching.state.steps import Schedule, Step, StepFinder

# Schedulers whose list ends with the finished image, for which no denoiser is called.
_END_IN_LIST = ("DDPMWuerstchenScheduler",)


class Denoising:
    """The calls of one denoiser in a call of its pipeline.

    Attributes:
        memory: what these calls share over steps.
        cache: over steps.
        ratio_merges: whether the ratio let tokens merge in its steps in which blocks ran: True, False or both.
    """

    def __init__(self, pipe: Any, name: str, state: DenoiserState) -> None:
        self._pipe, self._name, self._finder = pipe, name, StepFinder()
        self._schedules: list[Schedule] = []
        self.memory = StepMemory(state.config.reuse_steps)
        self.cache = StepCache(state, next(list_schedulers(pipe, name), None))
        self.ratio_merges: set[bool] = set()

    def find_step(self, timestep: float) -> Step | None:
        """Return the step of the next call; None without a list."""
        # Read once each time that they are set, as on a GPU reading waits for the device.
        known = {id(schedule.source): schedule for schedule in self._schedules}
        self._schedules = [
            known.get(id(scheduler.timesteps)) or Schedule(scheduler.timesteps, _read_timesteps(scheduler))
            for scheduler in list_schedulers(self._pipe, self._name)
        ]
        schedules = [schedule for schedule in self._schedules if schedule.timesteps]
        if not schedules:
            return None
        # Pipelines with ``denoising_end`` cut their list, which their scheduler does not know.
        return self._finder.find_step(schedules, timestep, vars(self._pipe).get("_num_timesteps"))

    def make_report(self) -> StepReport:
        """Report the calls so far, and the memory of the cache now."""
        histories = (history for kept in self.memory.values for history in kept.histories.values())
        return replace(self.cache.report, cache_bytes=count_bytes(histories))


class PipelineCall:
    """A call of a pipeline, with the denoisings of its denoisers."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._denoisings: dict[DenoiserState, Denoising | None] = {}

    def find_denoising(self, state: DenoiserState, denoiser: Layer) -> Denoising | None:
        """Return a denoiser's denoising in this call; None of another pipeline's.

        A callback may call another model, to which the pipeline's steps do not apply.
        """
        if state not in self._denoisings:
            names = (
                name for name, model in list_models(self._pipe)
                if any(layer is denoiser for layer in model.sublayers(include_self=True))
            )  # fmt: skip
            name = next(names, None)
            self._denoisings[state] = None if name is None else Denoising(self._pipe, name, state)
        return self._denoisings[state]

    def end(self, *, is_complete: bool) -> None:
        """Report cached steps, free all values, warn of useless bounds."""
        denoisings, self._denoisings = self._denoisings, {}
        for state, denoising in denoisings.items():
            if denoising is not None and state.config.cache:
                state.last_image = denoising.make_report()
            if denoising is not None and is_complete and not vars(self._pipe).get("_interrupt"):
                _warn_of_useless_bounds(state, denoising.ratio_merges)


def _read_timesteps(scheduler: Any) -> list[float]:
    """Return the timesteps of a scheduler's steps as Python numbers."""
    timesteps = scheduler.timesteps
    array = timesteps.astype("float64").numpy() if hasattr(timesteps, "numpy") else np.asarray(timesteps)
    numbers = [float(number) for number in array.reshape(-1)]
    lists_the_end = any(cls.__name__ in _END_IN_LIST for cls in type(scheduler).__mro__)
    return numbers[:-1] if lists_the_end else numbers


def _warn_of_useless_bounds(state: DenoiserState, ratio_merges: set[bool]) -> None:
    """Warn where no step of an image merged, or none stayed unmerged."""
    bounds = {"start": state.config.start, "end": state.config.end}
    given = " and ".join(f"{name}={value:g}" for name, value in bounds.items() if value not in (0, 1))
    if given and ratio_merges == {False}:
        state.warn_once(
            "start and end",
            f"nothing merged in any step of this image with {given}: img2img runs only the last part of the denoising, "
            "few steps may all lie outside, and a cache may skip those inside; choose another start or end",
        )
    if given and ratio_merges == {True}:
        state.warn_once(
            "start and end",
            f"no step of this image stays unmerged with {given}: of N steps the last begins at 1 - 1/N of the "
            "denoising, and those of img2img begin late; choose a smaller end, a greater start, or more steps",
        )
