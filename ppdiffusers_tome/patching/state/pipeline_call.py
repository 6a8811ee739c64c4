"""The calls of pipelines, with their denoisings and schedules.

``install`` wraps the ``__call__`` of every pipeline class with ``track_call``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ppdiffusers_tome.patching.layer_class import walk_overrides
from ppdiffusers_tome.patching.models import list_models, list_schedulers
from ppdiffusers_tome.patching.state.call_stack import CALL_STACK, PIPELINE_CALLS
from ppdiffusers_tome.patching.state.denoising import Denoising
from ppdiffusers_tome.patching.state.progress import SchedulerTracker, TimestepTracker

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# Schedulers whose list ends with the finished image, for which no denoiser is called.
_END_IN_LIST = ("DDPMWuerstchenScheduler",)


class PipelineCall:
    """A call of a pipeline."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._thread = pipe, threading.get_ident()
        self._denoisings: dict[DenoiserState, Denoising | None] = {}
        # Read once each time they are set, as on a GPU reading waits for the device.
        self._timesteps: dict[int, tuple[Any, list[float]]] = {}

    def denoising(self, state: DenoiserState) -> Denoising | None:
        """Return a denoiser's denoising in this call; None outside of the pipeline.

        A callback may call another model, to which the pipeline's steps do not apply.
        """
        if state not in self._denoisings:
            names = (
                name for name, model in list_models(self._pipe)
                if any(override.state is state for override in walk_overrides(model))
            )  # fmt: skip
            name = next(names, None)
            self._denoisings[state] = None if name is None else self._begin_denoising(name, state)
        return self._denoisings[state]

    def _begin_denoising(self, name: str, state: DenoiserState) -> Denoising:
        schedules = functools.partial(self._list_schedules, name)
        if not schedules():
            return Denoising(state, TimestepTracker(state.max_timestep))
        # Pipelines with ``denoising_end`` cut their list, which their scheduler does not know.
        tracker = SchedulerTracker(schedules, lambda: vars(self._pipe).get("_num_timesteps"))
        return Denoising(state, tracker, next(list_schedulers(self._pipe, name), None))

    def uses(self, layers: Collection[int]) -> bool:
        """Return whether another thread runs this with layers of these ids."""
        if self._thread == threading.get_ident():
            return False
        models = (model for _, model in list_models(self._pipe))
        return any(id(layer) in layers for model in models for layer in model.sublayers(include_self=True))

    def end(self, *, is_complete: bool) -> None:
        """Report cached steps, free all values, warn of useless bounds."""
        PIPELINE_CALLS.discard(self)
        denoisings, self._denoisings = self._denoisings, {}
        for state, denoising in denoisings.items():
            if denoising is not None and state.config.cache:
                state.last_image = denoising.cache.end()
            if is_complete and denoising is not None and not vars(self._pipe).get("_interrupt"):
                message = denoising.explain_useless_bounds(state.config)
                if message is not None:
                    state.warn_once("start and end", message)

    def _list_schedules(self, denoiser: str) -> Sequence[Sequence[float]]:
        """List the timesteps of all schedulers, that of the denoiser first."""
        timesteps_by_id = {}
        for scheduler in list_schedulers(self._pipe, denoiser):
            timesteps = scheduler.timesteps
            known = self._timesteps.get(id(timesteps))
            timesteps_by_id[id(timesteps)] = known or (timesteps, _read_timesteps(scheduler, timesteps))
        self._timesteps = timesteps_by_id
        return [steps for _, steps in timesteps_by_id.values() if steps]


def track_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pipeline's ``__call__`` to make each call current while it runs."""

    @functools.wraps(call)
    def run_call(pipe: Any, /, *args: Any, **kwargs: Any) -> Any:
        outer, pipeline_call, is_complete = CALL_STACK.pipeline_call, PipelineCall(pipe), False
        try:
            PIPELINE_CALLS.add(pipeline_call)
            CALL_STACK.pipeline_call = pipeline_call
            output = call(pipe, *args, **kwargs)
            is_complete = True
            return output
        finally:
            CALL_STACK.pipeline_call = outer
            pipeline_call.end(is_complete=is_complete)

    return run_call


_TRACKED = track_call(lambda pipe: None).__code__


def is_tracked(call: Any) -> bool:
    """Return whether a ``__call__`` is one that ``track_call`` made."""
    return getattr(call, "__code__", None) is _TRACKED


def _read_timesteps(scheduler: Any, timesteps: Any) -> list[float]:
    """Return the timesteps of a scheduler's steps as Python numbers."""
    array = timesteps.astype("float64").numpy() if hasattr(timesteps, "numpy") else np.asarray(timesteps)
    numbers = [float(number) for number in array.reshape(-1)]
    lists_the_end = any(cls.__name__ in _END_IN_LIST for cls in type(scheduler).__mro__)
    return numbers[:-1] if lists_the_end else numbers
