"""The values of layers over steps, and their prediction in skipped steps.

Merging makes a call of the denoiser cheaper; this makes some calls skip most of their layers. A skipped step adds what
those layers added in the last computed step, moved along a share of the slope between the last two (TaylorSeer, arXiv
2503.06923, has the whole slope).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import paddle


@dataclass
class History:
    """The value of a layer in the computed steps, extrapolated to others.

    Attributes:
        has_slope: True where the slope is kept, too.
        time: of the last computed step, see ``Step.time``.
        value: a tensor, or tuples, lists and mappings of tensors.
        slope: its change over time between the last two computed times; None before the second, or without
            ``has_slope``.
        is_repeated: True where the layer ran several times in one call, so that it cannot be predicted.
    """

    has_slope: bool
    time: int | None = None
    value: Any = None
    slope: Any = None
    is_repeated: bool = False

    def add(self, time: int, value: Any) -> None:
        """Store the value of a computed step, of the same shapes as before."""
        # Two steps of one timestep, as of Heun, have no distance: the slope stays that of the steps before.
        if self.has_slope and self.time is not None and time != self.time:
            distance = time - self.time
            self.slope = map_tensors(lambda new, old: (new - old) / distance, value, self.value)
        self.time, self.value = time, value

    def predict(self, time: int, share: float) -> Any:
        """Return the value that a skipped step uses, along a share of the slope."""
        if self.slope is None or self.time is None or share == 0:
            return self.value
        distance = share * (time - self.time)
        return map_tensors(lambda value, slope: value + slope * distance, self.value, self.slope)


Histories = dict[Hashable, History]


def count_bytes(histories: Iterable[History]) -> int:
    """Count the memory of the stored tensors, each once."""
    sizes: dict[int, int] = {}
    for history in histories:
        for stored in (history.value, history.slope):
            map_tensors(lambda tensor: sizes.update({id(tensor): tensor.size * tensor.element_size()}), stored)
    return sum(sizes.values())


@dataclass
class StepReport:
    """The calls of a denoiser in one image, one a step or, with guidance in calls of its own, two.

    Attributes:
        num_computed, num_skipped: calls that ran all layers, and calls in which the cache over steps skipped most.
        computed_steps: the steps that ran all layers, by number, where the pipeline's scheduler tells them.
        cache_bytes: the memory of the cache over steps at the end of the image.
    """

    num_computed: int = 0
    num_skipped: int = 0
    cache_bytes: int = 0
    computed_steps: tuple[int, ...] = ()

    def count(self, step: int | None, *, is_skipped: bool) -> None:
        """Count a call that ended."""
        self.num_computed += not is_skipped
        self.num_skipped += is_skipped
        if step is not None and not is_skipped and step not in self.computed_steps:
            self.computed_steps = (*self.computed_steps, step)

    def __add__(self, report: StepReport) -> StepReport:
        return StepReport(
            self.num_computed + report.num_computed, self.num_skipped + report.num_skipped,
            self.cache_bytes + report.cache_bytes, tuple(sorted({*self.computed_steps, *report.computed_steps})),
        )  # fmt: skip


@dataclass
class CachedStep:
    """One call of a denoiser with a cache over steps.

    Attributes:
        time: see ``Step.time``.
        is_computed: True in a step that runs all layers.
        is_kept: True in a computed step whose values a later step will use.
        slope: the share of the slope that a skipped step follows.
        has_slope: False where no step follows any.
        histories: of the layers in the calls of the steps before that belong to this one.
        stacks: the inputs of the stacks of blocks that run now, or their predicted outputs in a skipped step.
        record: called with the key and value of each stored layer; None outside of tuning.
        has_skipped: True once a layer was skipped.
    """

    time: int
    is_computed: bool
    is_kept: bool
    slope: float
    has_slope: bool
    histories: Histories
    stacks: dict[Hashable, Sequence[Any]] = field(default_factory=dict)
    record: Callable[[Hashable, Any], None] | None = None
    has_skipped: bool = False
    _stored: set[Hashable] = field(default_factory=set)

    def skips(self, key: Hashable) -> bool:
        """Return whether a layer is skipped, for which an earlier step is necessary."""
        return not self.is_computed and key in self.histories and not self.histories[key].is_repeated

    def store(self, key: Hashable, value: Any, *, is_used: bool = True) -> None:
        """Store the value of a layer in a computed step."""
        history = self.histories.setdefault(key, History(self.has_slope and is_used))
        if key in self._stored:
            history.is_repeated = True  # a layer that runs several times in a call has no one value
        else:
            self._stored.add(key)
            history.add(self.time, value)
            if self.record is not None and is_used:
                self.record(key, value)

    def predict(self, key: Hashable) -> Any:
        """Return the value of a layer in a skipped step."""
        self.has_skipped = True
        return self.histories[key].predict(self.time, self.slope)


def map_tensors(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to the tensors in nested values of one structure."""
    first = values[0]
    if isinstance(first, paddle.Tensor):
        return function(*values)
    if isinstance(first, (list, tuple)):
        return type(first)([map_tensors(function, *items) for items in zip(*values, strict=True)])
    if isinstance(first, Mapping):
        return type(first)(**{key: map_tensors(function, *(value[key] for value in values)) for key in first})
    return first
