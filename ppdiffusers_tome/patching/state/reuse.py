"""The reuse of reductions over denoising steps.

Calls that are not known to belong together do not share reductions: they are slower then, never wrong. This module does
not import Paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import paddle

Reductions = dict[Hashable, Any]
_PATIENCE = 3  # consecutive steps without reuse before this is logged


class _Entry(NamedTuple):
    """The reductions, shape of latents and conditioning of one call."""

    shape: Sequence[int]
    conditioning: Sequence[paddle.Tensor]
    reductions: Reductions


class MatchingCache:
    """The reductions that ``num_steps`` steps of one denoising share.

    ``never_matches`` is True after several consecutive steps without reuse.
    """

    def __init__(self, num_steps: float, are_equal: Callable[[paddle.Tensor, paddle.Tensor], bool]) -> None:
        self._num_steps, self._are_equal = num_steps, are_equal
        self._age = -1  # steps since reductions were new
        self._previous: list[_Entry] = []
        self._current: list[_Entry] = []
        self._misses = 0

    def next_step(self, *, continues: bool) -> None:
        """Begin a step; ``continues`` as in ``Step``."""
        self._age = self._age + 1 if continues else 0
        self._previous = [] if self._age % self._num_steps == 0 else self._current
        self._current = []

    def lookup(self, shape: Sequence[int], conditioning: Sequence[paddle.Tensor]) -> Reductions:
        """Return the reductions to reuse in a call, maybe none yet.

        A step may call the denoiser several times: for the prompted and the unprompted half, or for two images in
        turns. A call reuses the reductions of the previous step's call with the same shape of latents and the same
        conditioning, if exactly one exists.
        """
        found = [
            entry for entry in self._previous
            if entry.shape == shape and self._is_same(entry.conditioning, conditioning)
        ]  # fmt: skip
        if self._previous:
            self._misses = 0 if found else self._misses + 1
        reductions = found[0].reductions if len(found) == 1 else {}
        if any(entry.reductions is reductions for entry in self._current):
            reductions = {}  # one call cannot be two of the next step
        self._current.append(_Entry(shape, conditioning, reductions))
        return reductions

    @property
    def entries(self) -> list[Reductions]:
        """The reductions of the last step's calls, for the next step."""
        return [entry.reductions for entry in self._current]

    @property
    def never_matches(self) -> bool:
        return self._misses >= _PATIENCE

    def _is_same(self, one: Sequence[paddle.Tensor], another: Sequence[paddle.Tensor]) -> bool:
        """Compare conditioning: pipelines pass the same or equal tensors in every step."""
        pairs = zip(one, another, strict=False)
        return len(one) == len(another) and all(a is b or self._are_equal(a, b) for a, b in pairs)
