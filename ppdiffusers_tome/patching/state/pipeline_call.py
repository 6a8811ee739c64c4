"""One call of a pipeline: it tells the denoisers inside where a denoising begins and ends, and which steps it has.

``install`` puts ``track_call`` around the ``__call__`` of every pipeline class.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.state.progress import SchedulerTracker, Steps, TimestepTracker
from ppdiffusers_tome.patching.state.reuse import MatchingCache
from ppdiffusers_tome.settings.config import ToMeConfig

if TYPE_CHECKING:
    import paddle


class Denoiser(Protocol):
    """What has to be known of a denoiser, see ``Attachment``."""

    config: ToMeConfig
    max_timestep: float


class Denoising:
    """What one denoiser keeps from step to step of one denoising.

    Attributes:
        steps: tell how far it is.
        reuse: the matchings that steps share.
        grids: read off tensors' values, by how and of which host: those tensors, their versions, and what they tell.
    """

    def __init__(self, steps: Steps, reuse_steps: int) -> None:
        self.steps = steps
        self.reuse = MatchingCache(reuse_steps, _equal)
        self.grids: dict[Hashable, tuple[Sequence[paddle.Tensor], Sequence[int], Grid | None]] = {}


class PipelineCall:
    """A call of a pipeline, from its start to its end, whatever ends it."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._denoisings: dict[Denoiser, Denoising] = {}
        # Read once each time they are set, as on a GPU reading waits for the device.
        self._read: dict[int, tuple[Any, list[float]]] = {}
        self._at_end: dict[Denoiser, Callable[[], Any]] = {}

    def denoising(self, denoiser: Denoiser) -> Denoising:
        """That of one denoiser, the same for as long as the call lasts."""
        if denoiser not in self._denoisings:
            schedules = functools.partial(self._schedules, self._name_of(denoiser))
            steps = SchedulerTracker(schedules) if schedules() else TimestepTracker(denoiser.max_timestep)
            self._denoisings[denoiser] = Denoising(steps, denoiser.config.reuse_steps)
        return self._denoisings[denoiser]

    def at_end(self, denoiser: Denoiser, action: Callable[[], Any]) -> None:
        """Have ``action`` called when this call has ended, once a denoiser."""
        self._at_end[denoiser] = action

    def end(self) -> None:
        """Whatever a denoiser could not drop, as it failed, is dropped."""
        for action in self._at_end.values():
            action()

    def _name_of(self, denoiser: Denoiser) -> str:
        """What the pipeline calls a denoiser; "" for one that it holds within something else."""
        for name, model in list_models(self._pipe):
            hooks = list(model._forward_pre_hooks.values())  # a thread may attach to it meanwhile
            if any(getattr(getattr(hook, "__self__", None), "attachment", None) is denoiser for hook in hooks):
                return name
        return ""

    def _schedules(self, denoiser: str) -> Sequence[Sequence[float]]:
        """The timesteps of all schedulers that the pipeline holds now.

        First those of a scheduler that is called like the denoiser, as unCLIP's ``prior_scheduler``,
        ``decoder_scheduler`` and ``super_res_scheduler`` may all begin with the same timestep; then its ``scheduler``.
        """
        held = dict(vars(self._pipe))  # another thread may set an attribute meanwhile

        def order(name: str) -> int:
            kind = name.removesuffix("_scheduler")
            return 0 if kind != name and denoiser.startswith(kind) else 1 if name == "scheduler" else 2

        read = {}
        for scheduler in (held[name] for name in sorted(held, key=order)):
            if hasattr(scheduler, "set_timesteps") and getattr(scheduler, "timesteps", None) is not None:
                timesteps = scheduler.timesteps
                read[id(timesteps)] = self._read.get(id(timesteps)) or (timesteps, _steps_of(scheduler, timesteps))
        self._read = read
        return [steps for _, steps in read.values() if steps]


class _Current(threading.local):
    call: PipelineCall | None = None


_current = _Current()


def current_pipeline_call() -> PipelineCall | None:
    """The innermost call of a pipeline that runs on this thread, or None."""
    return _current.call


def track_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """A pipeline's ``__call__`` that does the same and can be asked about, for as long as it runs."""

    @functools.wraps(call)
    def tracked_call(pipe: Any, /, *args: Any, **kwargs: Any) -> Any:
        outer, _current.call = _current.call, PipelineCall(pipe)
        try:
            return call(pipe, *args, **kwargs)
        finally:
            ended, _current.call = _current.call, outer
            ended.end()

    return tracked_call


def is_tracked(call: Any) -> bool:
    """Whether a ``__call__`` is one that ``track_call`` made."""
    return getattr(call, "__code__", None) is _TRACKED


_TRACKED = track_call(lambda pipe: None).__code__

# Their list ends with the finished picture, for which no denoiser is called.
_LISTING_THE_END = ("DDPMWuerstchenScheduler",)


def _steps_of(scheduler: Any, timesteps: Any) -> list[float]:
    """The timesteps of a scheduler's steps, in whatever form it holds them, as plain numbers."""
    array = timesteps.astype("float64").numpy() if hasattr(timesteps, "numpy") else np.asarray(timesteps)
    numbers = [float(number) for number in array.reshape(-1)]
    lists_the_end = any(cls.__name__ in _LISTING_THE_END for cls in type(scheduler).__mro__)
    return numbers[:-1] if lists_the_end else numbers


def _equal(one: paddle.Tensor, other: paddle.Tensor) -> bool:
    """Whether two tensors hold the same numbers; read on the host, so it waits for the device."""
    return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())
