"""The values that calls of a denoiser share over steps.

They are reductions to reuse, or histories of layers.

Calls that are not known to belong together share nothing: they are slower then, never wrong. This module does not
import Paddle.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import paddle

    from ppdiffusers_tome.merging.kv_reduction import TokenReduction
    from ppdiffusers_tome.patching.step_cache import History

_PATIENCE = 3  # consecutive calls without a match before this is logged


@dataclass(eq=False)
class SharedValues:
    """The values of a call from the step before, for the next.

    Attributes:
        shape, conditioning: of the call, by which the next step finds it.
        versions: of the conditioning, which may change in place.
        reductions: by block, layout and batch, for ``reuse_steps``.
        histories: of layers, for the cache over steps.
    """

    shape: Sequence[int]
    conditioning: Sequence[paddle.Tensor]
    versions: Sequence[int]
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
        self._misses = 0

    def begin_step(self, *, continues: bool) -> None:
        """Begin a step; ``continues`` as in ``Step``."""
        self._age = self._age + 1 if continues else 0
        self._previous, self.values = self.values if continues else [], []

    def find_values(self, shape: Sequence[int], conditioning: Sequence[paddle.Tensor]) -> SharedValues:
        """Return the values that a call shares with earlier ones.

        A step may call the denoiser several times: for the prompted and the unprompted half, or for two images in
        turns. A call shares the values of the previous step's call with the same shape of latents and the same
        conditioning, if exactly one exists.
        """
        values = SharedValues(shape, conditioning, [getattr(tensor, "inplace_version", 0) for tensor in conditioning])
        found = [each for each in self._previous if each.shape == shape and _is_same(each, conditioning)]
        if self._previous:
            self._misses = 0 if len(found) == 1 else self._misses + 1
        # One call cannot be two of the next step.
        if len(found) == 1 and all(each.histories is not found[0].histories for each in self.values):
            values.histories = found[0].histories
            if self._age % self._reuse_steps > 0:
                values.reductions = found[0].reductions
        self.values.append(values)
        return values

    @property
    def never_matches(self) -> bool:
        """True after several consecutive calls without a match."""
        return self._misses >= _PATIENCE


def _is_same(earlier: SharedValues, conditioning: Sequence[paddle.Tensor]) -> bool:
    """Compare conditioning: pipelines pass the same or equal tensors in every step."""
    if len(earlier.conditioning) != len(conditioning):
        return False
    rows = zip(earlier.conditioning, conditioning, earlier.versions, strict=True)
    # One that changed meanwhile differs from what it was, also where the new one is a view of the same memory.
    return all(getattr(a, "inplace_version", 0) == v and (a is b or _are_equal(a, b)) for a, b, v in rows)


def _are_equal(one: paddle.Tensor, another: paddle.Tensor) -> bool:
    """Compare two tensors by their values, which waits for the device."""
    return one.shape == another.shape and one.dtype == another.dtype and bool((one == another).all())
