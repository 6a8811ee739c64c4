"""The values of layers over steps, and their prediction in skipped steps.

Merging makes a call of the denoiser cheaper; this makes some calls skip most of their layers. A skipped step adds what
those layers added in the computed steps before it, extrapolated linearly (TaylorSeer, arXiv 2503.06923, order 1).
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
        order: of the extrapolation, 0 or 1.
        time: of the last computed step, see ``Step.time``.
        value: a tensor, or tuples, lists and mappings of tensors.
        slope: its change over time between the last two computed times; None before the second, or with order 0.
        is_repeated: True where the layer ran several times in one call, so that it cannot be predicted.
    """

    order: int
    time: int | None = None
    value: Any = None
    slope: Any = None
    is_repeated: bool = False

    def add(self, time: int, value: Any) -> None:
        """Store the value of a computed step, of the same shapes as before."""
        # Two steps of one timestep, as of Heun, have no distance: the slope stays that of the steps before.
        if self.order > 0 and self.time is not None and time != self.time:
            distance = time - self.time
            self.slope = map_tensors(lambda new, old: (new - old) / distance, value, self.value)
        self.time, self.value = time, value

    def predict(self, time: int) -> Any:
        """Return the value that a skipped step uses."""
        if self.slope is None or self.time is None or time == self.time:
            return self.value
        distance = time - self.time
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
        cache_bytes: the memory of the cache over steps at the end of the image.
    """

    num_computed: int = 0
    num_skipped: int = 0
    cache_bytes: int = 0

    def count(self, *, is_skipped: bool) -> None:
        """Count a call that ended."""
        self.num_computed += not is_skipped
        self.num_skipped += is_skipped

    def __add__(self, report: StepReport) -> StepReport:
        return StepReport(
            self.num_computed + report.num_computed, self.num_skipped + report.num_skipped,
            self.cache_bytes + report.cache_bytes,
        )  # fmt: skip


@dataclass
class CachedStep:
    """One call of a denoiser with a cache over steps.

    Attributes:
        time: see ``Step.time``.
        is_computed: True in a step that runs all layers.
        is_kept: True in a computed step whose values a later step will use.
        order: of the extrapolation, 0 or 1.
        histories: of the layers in the calls of the steps before that belong to this one.
        stacks: the inputs of the stacks of blocks that run now, or their predicted outputs in a skipped step.
        has_skipped: True once a layer was skipped.
    """

    time: int
    is_computed: bool
    is_kept: bool
    order: int
    histories: Histories
    stacks: dict[Hashable, Sequence[Any]] = field(default_factory=dict)
    has_skipped: bool = False
    _stored: set[Hashable] = field(default_factory=set)

    def skips(self, key: Hashable) -> bool:
        """Return whether a layer is skipped, for which an earlier step is necessary."""
        return not self.is_computed and key in self.histories and not self.histories[key].is_repeated

    def store(self, key: Hashable, value: Any, *, order: int | None = None) -> None:
        """Store the value of a layer in a computed step."""
        history = self.histories.setdefault(key, History(self.order if order is None else order))
        if key in self._stored:
            history.is_repeated = True  # a layer that runs several times in a call has no one value
        else:
            self._stored.add(key)
            history.add(self.time, value)

    def predict(self, key: Hashable) -> Any:
        """Return the value of a layer in a skipped step."""
        self.has_skipped = True
        return self.histories[key].predict(self.time)


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
