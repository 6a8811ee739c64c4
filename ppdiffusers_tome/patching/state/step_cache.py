"""The values of layers over steps, and their prediction in skipped steps.

Merging makes a call of the denoiser cheaper; this makes some calls skip most of their layers. A skipped step adds what
those layers added in the computed steps before it, extrapolated linearly (TaylorSeer, arXiv 2503.06923, order 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import paddle


@dataclass
class History:
    """The value of a layer in the computed steps, extrapolated to others.

    Attributes:
        step: the last computed one.
        value: a tensor, or tuples, lists and mappings of tensors.
        slope: its change per step between the last two computed steps; None before the second, or with order 0.
        is_repeated: True where the layer ran several times in one call, so that it cannot be predicted.
    """

    order: int
    step: int = -1
    value: Any = None
    slope: Any = None
    is_repeated: bool = False

    def add(self, step: int, value: Any) -> None:
        """Store the value of a computed step, of the same shapes as before."""
        if step == self.step:
            self.is_repeated = True  # a layer that runs several times in a call has no one value
            return
        if self.order > 0 and self.step >= 0:
            distance = step - self.step
            self.slope = map_tensors(lambda new, old: (new - old) / distance, value, self.value)
        self.step, self.value = step, value

    def predict(self, step: int) -> Any:
        """Return the value that a skipped step uses."""
        if self.slope is None:
            return self.value
        distance = step - self.step
        return map_tensors(lambda value, slope: value + slope * distance, self.value, self.slope)

    @property
    def num_bytes(self) -> int:
        """The memory of the stored tensors."""
        sizes: list[int] = []
        for stored in (self.value, self.slope):
            map_tensors(lambda tensor: sizes.append(math.prod(tensor.shape) * tensor.element_size()), stored)
        return sum(sizes)


Histories = dict[Hashable, History]


@dataclass
class StepReport:
    """The calls of a denoiser in one image, one a step or, with guidance in calls of its own, two.

    Attributes:
        num_computed, num_skipped: calls with all layers, and calls of the cache over steps that skipped most.
        cache_bytes: the memory of the cache over steps at the end of the image.
    """

    num_computed: int = 0
    num_skipped: int = 0
    cache_bytes: int = 0

    def count(self, is_computed: bool) -> None:
        """Count a call."""
        self.num_computed += is_computed
        self.num_skipped += not is_computed

    def __add__(self, report: StepReport) -> StepReport:
        return StepReport(
            self.num_computed + report.num_computed, self.num_skipped + report.num_skipped,
            self.cache_bytes + report.cache_bytes,
        )  # fmt: skip


@dataclass
class CachedStep:
    """One call of a denoiser with a cache over steps.

    Attributes:
        step: its number in the denoising.
        is_computed: True in a step that runs all layers and stores their values.
        order: of the extrapolation, 0 or 1.
        histories: of the layers in the calls of the steps before that belong to this one.
        stacks: the inputs of the stacks of blocks that run now, or their predicted outputs in a skipped step.
    """

    step: int
    is_computed: bool
    order: int
    histories: Histories
    stacks: dict[Hashable, Sequence[Any]] = field(default_factory=dict)

    def skips(self, key: Hashable) -> bool:
        """Return whether a layer is skipped, for which an earlier step is necessary."""
        return not self.is_computed and key in self.histories and not self.histories[key].is_repeated

    def store(self, key: Hashable, value: Any, *, order: int | None = None) -> None:
        """Store the value of a layer in a computed step."""
        history = self.histories.setdefault(key, History(self.order if order is None else order))
        history.add(self.step, value)

    def predict(self, key: Hashable) -> Any:
        """Return the value of a layer in a skipped step."""
        return self.histories[key].predict(self.step)


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
