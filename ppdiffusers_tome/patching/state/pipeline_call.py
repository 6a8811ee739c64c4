"""The denoisings and schedules in one call of a pipeline.

``install`` wraps the ``__call__`` of every pipeline class with ``track_call``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.layer_class import reset_step_caches, walk_overrides
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.state.call_stack import CALL_STACK, PIPELINE_CALLS
from ppdiffusers_tome.patching.state.progress import SchedulerTracker, TimestepTracker
from ppdiffusers_tome.patching.step_cache import StepCache
from ppdiffusers_tome.patching.step_memory import StepMemory
from ppdiffusers_tome.settings.step_schedule import UNET

if TYPE_CHECKING:
    import paddle

    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
    from ppdiffusers_tome.settings.config import ToMeConfig

# Schedulers whose list ends with the finished image, for which no denoiser is called.
_END_IN_LIST = ("DDPMWuerstchenScheduler",)


class Denoising:
    """The state of one denoiser over the steps of one denoising.

    Args:
        config, family: the denoiser's settings and its kind, see ``FAMILIES``.
        scheduler: the class name of the pipeline's main scheduler, or "".
        predicts_noise: True where the denoiser predicts noise.

    Attributes:
        tracker: of the steps.
        is_of_pipeline: False for calls of a denoiser by itself.
        advice: what to do where no schedule tells the steps.
        matchings: the reductions that steps share.
        cache: over steps.
        grids: tensors whose values describe a grid, their versions, and the grid, by the parent of blocks.
        has_merged: whether tokens merged in a block that ran; None before.
        progress: of all steps of a pipeline that ran, where a setting needs it.
    """

    def __init__(
        self, tracker: SchedulerTracker | TimestepTracker, config: ToMeConfig, family: str = UNET, *,
        is_of_pipeline: bool = True, scheduler: str = "", predicts_noise: bool = False,
    ) -> None:  # fmt: skip
        self.tracker, self.is_of_pipeline = tracker, is_of_pipeline
        self.advice = "this pipeline shows none" if is_of_pipeline else "call the model through its pipeline"
        self.matchings = StepMemory(config.reuse_steps)
        has_schedule = isinstance(tracker, SchedulerTracker)
        advice = None if has_schedule else self.advice
        self.cache = StepCache(config, family, scheduler, advice, predicts_noise=predicts_noise)
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


class PipelineCall:
    """A call of a pipeline."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._thread = pipe, threading.get_ident()
        PIPELINE_CALLS.add(self)
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
            name, denoising = next(names, None), None
            if name is not None:
                schedules = functools.partial(self._list_schedules, name)
                tracker = (
                    SchedulerTracker(schedules, self._count_steps) if schedules()
                    else TimestepTracker(state.max_timestep)
                )  # fmt: skip
                scheduler = type(getattr(self._pipe, "scheduler", None)).__name__
                denoising = Denoising(
                    tracker, state.config, state.family, scheduler=scheduler,
                    predicts_noise=predicts_noise(next(self._list_schedulers(name), None), state.family),
                )  # fmt: skip
            self._denoisings[state] = denoising
        return self._denoisings[state]

    def uses(self, layers: Collection[int]) -> bool:
        """Return whether another thread runs this with some of these layers, given by id."""
        if self._thread == threading.get_ident():
            return False
        models = (model for _, model in list_models(self._pipe))
        return any(id(layer) in layers for model in models for layer in model.sublayers(include_self=True))

    def end(self, *, is_complete: bool) -> None:
        """Report cached steps, free all values, log a ``start`` or ``end`` without effect."""
        PIPELINE_CALLS.discard(self)
        denoisings, self._denoisings = self._denoisings, {}
        for state, denoising in denoisings.items():
            if denoising is not None and state.config.cache:
                state.last_image = denoising.cache.end()
            if is_complete and denoising is not None:
                message = denoising.explain_bounds(state.config)
                if message is not None:
                    state.warn_once("start and end", message)

    def _count_steps(self) -> int | None:
        """Return how many of the schedule's steps the pipeline runs, where it says so.

        Pipelines with ``denoising_end`` cut their list, which their scheduler does not know.
        """
        return vars(self._pipe).get("_num_timesteps")

    def _list_schedules(self, denoiser: str) -> Sequence[Sequence[float]]:
        """List the timesteps of all schedulers, that of the denoiser first."""
        timesteps_by_id = {}
        for scheduler in self._list_schedulers(denoiser):
            timesteps = scheduler.timesteps
            known = self._timesteps.get(id(timesteps))
            timesteps_by_id[id(timesteps)] = known or (timesteps, _read_timesteps(scheduler, timesteps))
        self._timesteps = timesteps_by_id
        return [steps for _, steps in timesteps_by_id.values() if steps]

    def _list_schedulers(self, denoiser: str) -> Iterator[Any]:
        """Yield the schedulers that the pipeline has now, with timesteps.

        A scheduler named like the denoiser is first, as unCLIP's ``prior_scheduler``, ``decoder_scheduler`` and
        ``super_res_scheduler`` may all begin with the same timestep; ``scheduler`` is next.
        """
        attributes = dict(vars(self._pipe))  # another thread may set an attribute meanwhile

        def rank(name: str) -> int:
            stem = name.removesuffix("_scheduler")
            return 0 if stem != name and denoiser.startswith(stem) else 1 if name == "scheduler" else 2

        for scheduler in (attributes[name] for name in sorted(attributes, key=rank)):
            if hasattr(scheduler, "set_timesteps") and getattr(scheduler, "timesteps", None) is not None:
                yield scheduler


def track_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pipeline's ``__call__`` to make each call current while it runs."""
    if inspect.isgeneratorfunction(call):

        @functools.wraps(call)
        def run_generator(pipe: Any, /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            # The pipeline runs only between two items; its caller may run others during an item.
            with _begin(pipe) as pipeline_call, closing(call(pipe, *args, **kwargs)) as items:
                sent = None
                while True:
                    with _make_current(pipeline_call):
                        try:
                            item = items.send(sent)
                        except StopIteration as stop:
                            return stop.value
                    sent = yield item

        return run_generator

    @functools.wraps(call)
    def run_call(pipe: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _begin(pipe) as pipeline_call, _make_current(pipeline_call):
            return call(pipe, *args, **kwargs)

    return run_call


@contextmanager
def _make_current(call: PipelineCall) -> Iterator[None]:
    outer, CALL_STACK.pipeline_call = CALL_STACK.pipeline_call, call
    try:
        yield
    finally:
        CALL_STACK.pipeline_call = outer


def is_tracked(call: Any) -> bool:
    """Return whether a ``__call__`` is one that ``track_call`` made."""
    return getattr(call, "__code__", None) in _TRACKED


@contextmanager
def _begin(pipe: Any) -> Iterator[PipelineCall]:
    """Begin a call of a pipeline, and end it however it ends."""
    # Pyramid Attention Broadcast keeps its cache: the first steps would reuse the attention of the last image.
    for _, model in list_models(pipe) if hasattr(type(pipe), "components") else ():
        layers = [layer for layer in model.sublayers(include_self=True) if "_diffusers_hook" in vars(layer)]
        if layers and any(True for _ in walk_overrides(model)):
            for layer in layers:
                reset_step_caches(layer)
    call = PipelineCall(pipe)
    try:
        yield call
    except BaseException:
        call.end(is_complete=False)
        raise
    call.end(is_complete=True)


def _generate() -> Iterator[None]:
    yield


_TRACKED = {track_call(lambda pipe: None).__code__, track_call(_generate).__code__}


def predicts_noise(scheduler: Any, family: str) -> bool:
    """Return whether a scheduler takes its denoiser's output for noise.

    One that does not say so is for noise if it is a UNet's (RePaint, Würstchen). EDM's schedulers say ``epsilon`` of a
    denoiser whose scaled output is part of the image (Karras et al. 2022, section 5).
    """
    config = getattr(scheduler, "config", None)
    kind = config.get("prediction_type") if isinstance(config, Mapping) else getattr(config, "prediction_type", None)
    return (family == UNET if kind is None else kind == "epsilon") and not type(scheduler).__name__.startswith("EDM")


def _read_timesteps(scheduler: Any, timesteps: Any) -> list[float]:
    """Return the timesteps of a scheduler's steps as Python numbers."""
    array = timesteps.astype("float64").numpy() if hasattr(timesteps, "numpy") else np.asarray(timesteps)
    numbers = [float(number) for number in array.reshape(-1)]
    lists_the_end = any(cls.__name__ in _END_IN_LIST for cls in type(scheduler).__mro__)
    return numbers[:-1] if lists_the_end else numbers

