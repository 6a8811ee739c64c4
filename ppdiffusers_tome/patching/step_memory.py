"""The values that calls of a denoiser share over steps.

They are reductions to reuse, or histories of layers.

Calls that are not known to belong together share nothing: they are slower then, never wrong. This module does not
import Paddle.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import paddle

Values = dict[Hashable, Any]
CALLS_DIFFER = (
    "this model's calls cannot be told apart from step to step, as what it is given beside its latents is new in every "
    "step, or the same in several calls of one"
)
_PATIENCE = 3  # consecutive calls without a match before this is logged


class _Entry(NamedTuple):
    """The values, shape of latents and conditioning of one call."""

    shape: Sequence[int]
    conditioning: Sequence[paddle.Tensor]
    versions: Sequence[int]  # of the conditioning, which may change in place
    values: Values


class StepMemory:
    """The values that a denoising's calls share over steps.

    Args:
        num_steps: after so many steps calls begin with no values; infinite for all of the denoising.
    """

    def __init__(self, num_steps: float) -> None:
        self._num_steps = num_steps
        self._age = -1  # steps since all values were new
        self._previous: list[_Entry] = []
        self._current: list[_Entry] = []
        self._misses = 0

    def next_step(self, *, continues: bool) -> None:
        """Begin a step; ``continues`` as in ``Step``."""
        self._age = self._age + 1 if continues else 0
        self._previous = [] if self._age % self._num_steps == 0 else self._current
        self._current = []

    def lookup(self, shape: Sequence[int], conditioning: Sequence[paddle.Tensor]) -> Values:
        """Return the values that a call shares with earlier ones.

        A step may call the denoiser several times: for the prompted and the unprompted half, or for two images in
        turns. A call shares the values of the previous step's call with the same shape of latents and the same
        conditioning, if exactly one exists.
        """
        versions = [getattr(tensor, "inplace_version", 0) for tensor in conditioning]
        found = [
            entry for entry in self._previous
            if entry.shape == shape and self._is_same(entry, conditioning)
        ]  # fmt: skip
        if self._previous:
            self._misses = 0 if len(found) == 1 else self._misses + 1
        values = found[0].values if len(found) == 1 else {}
        if any(entry.values is values for entry in self._current):
            values = {}  # one call cannot be two of the next step
        self._current.append(_Entry(shape, conditioning, versions, values))
        return values

    @property
    def entries(self) -> list[Values]:
        """The values of the last step's calls, for the next step."""
        return [entry.values for entry in self._current]

    @property
    def never_matches(self) -> bool:
        """True after several consecutive calls without a match."""
        return self._misses >= _PATIENCE

    def _is_same(self, entry: _Entry, conditioning: Sequence[paddle.Tensor]) -> bool:
        """Compare conditioning: pipelines pass the same or equal tensors in every step."""
        if len(entry.conditioning) != len(conditioning):
            return False
        rows = zip(entry.conditioning, conditioning, entry.versions, strict=True)
        # One that changed meanwhile differs from what it was, also where the new one is a view of the same memory.
        return all(getattr(a, "inplace_version", 0) == v and (a is b or _are_equal(a, b)) for a, b, v in rows)


def _are_equal(one: paddle.Tensor, another: paddle.Tensor) -> bool:
    """Compare two tensors by their values, which waits for the device."""
    return one.shape == another.shape and one.dtype == another.dtype and bool((one == another).all())
