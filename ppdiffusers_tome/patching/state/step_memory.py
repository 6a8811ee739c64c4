"""The values that calls of a denoiser share over steps.

They are reductions to reuse, or histories of layers.

Calls that are not known to belong together share nothing: they are slower then, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import paddle

from ppdiffusers_tome.merging.chosen_keys import TokenReduction

# The share of the slope that a skipped step follows; all of it overshoots where values curve.
SLOPE = 0.75


@dataclass
class History:
    """The value of a layer in the computed steps, extrapolated to others.

    Attributes:
        time: of the last computed step, see ``Step.time``.
        value: a tensor, or tuples and lists of tensors.
        slope: its change over time between the last two computed times; None before the second.
        is_repeated: True where the layer ran several times in one call, so that it has no one value.
    """

    time: int | None = None
    value: Any = None
    slope: Any = None
    is_repeated: bool = False

    def add(self, time: int | None, value: Any) -> None:
        """Store a computed step's value, without a slope where time is None."""
        # Two steps of one timestep, as of Heun, have no distance: the slope stays that of the steps before.
        if time is not None and self.time is not None and time != self.time:
            distance = time - self.time
            self.slope = map_tensors(lambda new, old: (new - old) / distance, value, self.value)
        self.time, self.value = time, value

    def predict(self, time: int) -> Any:
        """Return a skipped step's value, along ``SLOPE`` of the slope."""
        if self.slope is None or self.time is None:
            return self.value
        distance = SLOPE * (time - self.time)
        return map_tensors(lambda value, slope: value + slope * distance, self.value, self.slope)


@dataclass(frozen=True)
class StepReport:
    """The calls of a denoiser in one image.

    There is one a step or, with guidance in calls of its own, two; several ControlNets with one config add up theirs.

    Attributes:
        num_computed, num_skipped: calls that ran all layers, and calls in which the cache over steps skipped most.
        cache_bytes: the memory of the cache over steps at the end of the image.
        computed_steps: the steps that ran all layers, by number in their run of steps, where the pipeline's scheduler
            tells them.
    """

    num_computed: int = 0
    num_skipped: int = 0
    cache_bytes: int = 0
    computed_steps: tuple[int, ...] = ()

    def __add__(self, report: StepReport) -> StepReport:
        return StepReport(
            self.num_computed + report.num_computed, self.num_skipped + report.num_skipped,
            self.cache_bytes + report.cache_bytes, tuple(sorted({*self.computed_steps, *report.computed_steps})),
        )  # fmt: skip


@dataclass(eq=False)
class SharedValues:
    """The values of a call from the step before, for the next.

    Attributes:
        shape, conditioning: of the call, by which the next step finds it; each tensor with its version, as it may
            change in place.
        reductions: by block, layout and batch, for ``reuse_steps``.
        histories: of layers, for the cache over steps.
    """

    shape: Sequence[int]
    conditioning: Sequence[tuple[paddle.Tensor, int]]
    reductions: dict[Any, TokenReduction] = field(default_factory=dict)
    histories: dict[Hashable, History] = field(default_factory=dict)


class StepMemory:
    """The values that a denoising's calls share over steps.

    Args:
        reuse_steps: the number of steps that share reductions.

    Attributes:
        values: of the calls of the last step.
    """

    def __init__(self, reuse_steps: int) -> None:
        self._reuse_steps = reuse_steps
        self._age = -1  # steps since the run began
        self._previous: list[SharedValues] = []
        self.values: list[SharedValues] = []
        self._continues = self._has_shared = False

    def begin_step(self, *, continues: bool) -> None:
        """Begin a step; ``continues`` as in ``Step``."""
        self._age = self._age + 1 if continues else 0
        self._previous, self.values = self.values if continues else [], []
        self._continues |= continues

    def begin_call(self, shape: Sequence[int], conditioning: Sequence[paddle.Tensor]) -> SharedValues:
        """Begin a call, with the values that it shares with earlier ones.

        A step may call the denoiser several times: for the prompted and the unprompted half, or for two images in
        turns. A call shares the values of the previous step's call with the same shape of latents and the same
        conditioning, if exactly one exists.
        """
        values = SharedValues(shape, [(tensor, tensor.inplace_version) for tensor in conditioning])
        found = [each for each in self._previous if each.shape == shape and _is_same(each, conditioning)]
        # One call cannot be two of the next step.
        if len(found) == 1 and all(each.histories is not found[0].histories for each in self.values):
            self._has_shared = True
            values.histories = found[0].histories
            if self._age % self._reuse_steps > 0:
                values.reductions = found[0].reductions
        self.values.append(values)
        return values

    @property
    def shares_nothing(self) -> bool:
        """True where steps followed one another and no call found its own."""
        return self._continues and not self._has_shared


def _is_same(earlier: SharedValues, conditioning: Sequence[paddle.Tensor]) -> bool:
    """Compare conditioning: pipelines pass the same or equal tensors in every step."""
    # One that changed meanwhile differs from what it was, also where the new one is a view of the same memory.
    # Comparing values waits for the device.
    return len(earlier.conditioning) == len(conditioning) and all(
        a.inplace_version == version
        and (a is b or (a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())))
        for (a, version), b in zip(earlier.conditioning, conditioning, strict=True)
    )


def count_bytes(histories: Iterable[History]) -> int:
    """Count the memory of the stored tensors, each once."""
    sizes: dict[int, int] = {}
    for history in histories:
        for stored in (history.value, history.slope):
            map_tensors(lambda tensor: sizes.update({id(tensor): tensor.size * tensor.element_size()}), stored)
    return sum(sizes.values())


def map_tensors(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to the tensors in nested values of one structure."""
    first = values[0]
    if isinstance(first, paddle.Tensor):
        return function(*values)
    if isinstance(first, (list, tuple)):
        return type(first)([map_tensors(function, *items) for items in zip(*values, strict=True)])
    return first
