"""A call of a denoiser whose layers are stored, or skipped and predicted."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import paddle

from ppdiffusers_tome.patching.state.denoiser_call import CallCache, DenoiserCall
from ppdiffusers_tome.patching.state.steps import Step
from ppdiffusers_tome.patching.step_cache.skipped_steps import choose_skipped_steps

# The share of the slope that a skipped step follows; all of it overshoots where values curve.
SLOPE = 0.75


class History(NamedTuple):
    """The value of a layer in the computed steps, extrapolated to others."""

    time: int | None = None  # of the last computed step, see ``Step.time``; None where the value has no slope
    value: Any = None  # a tensor, or tuples and lists of tensors
    slope: Any = None  # its change over time between the last two computed times; None before the second
    is_repeated: bool = False  # True once the layer ran twice in one call, and so has no one value

    def add(self, time: int | None, value: Any) -> "History":
        """Return this with a computed step's value; without time, no slope."""
        # Two steps of one timestep, as of Heun, have no distance: the slope stays that of the steps before.
        if time is None or self.time is None or time == self.time:
            return History(time, value, self.slope)
        distance = time - self.time
        return History(time, value, map_tensors(lambda new, old: (new - old) / distance, value, self.value))

    def predict(self, time: int) -> Any:
        """Return a skipped step's value, along ``SLOPE`` of the slope."""
        if self.slope is None or self.time is None:
            return self.value
        distance = SLOPE * (time - self.time)
        return map_tensors(lambda value, slope: value + slope * distance, self.value, self.slope)


class CachedCall:
    """The ``CallCache`` of a call, with layers' histories from earlier steps."""

    def __init__(self, step: Step, skipped_steps: frozenset[int], histories: dict[str, Any]) -> None:
        self._step, self._histories = step, histories
        self._is_skipped = step.number in skipped_steps
        self.stores_values = step.number < max(skipped_steps, default=0)  # a later step may need them
        self.has_skipped = False  # any layer
        self.chain_inputs: dict[str, Sequence[Any]] = {}
        self.chain_outputs: dict[str, Sequence[Any]] = {}
        self._stored: set[str] = set()

    def skips(self, path: str) -> bool:
        return self._is_skipped and path in self._histories and not self._histories[path].is_repeated

    def predict_all(self) -> dict[str, Any]:
        """Return the values of all layers that are skipped, by path."""
        return {path: self.predict(path) for path in self._histories if self.skips(path)}

    def store(self, path: str, value: Any, *, has_slope: bool = True) -> None:
        history = self._histories.get(path, History())
        if history.is_repeated or path in self._stored:
            self._histories[path] = History(is_repeated=True)
        else:
            self._histories[path] = history.add(self._step.time if has_slope else None, value)
        self._stored.add(path)

    def predict(self, path: str) -> Any:
        return self._histories[path].predict(self._step.time)


def open_cached_call(call: DenoiserCall) -> CallCache | None:
    """Return what the cache knows of a call; None where all layers run."""
    denoising, step, shared = call.denoising, call.step, call.shared
    if call.cached is None and denoising is not None and step is not None and shared is not None:
        if denoising.skipped_steps is None:
            denoising.skipped_steps = choose_skipped_steps(call, denoising.scheduler, step.num_steps)
        call.cached = CachedCall(step, denoising.skipped_steps, shared.histories)
    return call.cached


def map_tensors(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to the tensors in nested values of one structure."""
    first = values[0]
    if isinstance(first, paddle.Tensor):
        return function(*values)
    if isinstance(first, (list, tuple)):
        return type(first)([map_tensors(function, *items) for items in zip(*values, strict=True)])
    return first
