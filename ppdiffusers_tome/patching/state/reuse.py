"""Reuse over denoising steps: which matchings a call of the denoiser may take over from earlier calls. Knows no Paddle.

Whatever cannot be told to belong together gets matchings of its own: it is then slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import paddle

Matchings = dict[Hashable, Any]


@dataclass(eq=False)
class _Kept:
    """What one call of a step may hand on.

    Attributes:
        shape: of the latents it was given.
        conditioning: the tensors beside them: the text, class labels and the like.
        matchings: of its blocks.
    """

    shape: Sequence[int]
    conditioning: Sequence[paddle.Tensor]
    matchings: Matchings = field(default_factory=dict)


class MatchingCache:
    """The matchings that the steps of one denoising share.

    Args:
        steps: how many steps share theirs.
        equal: whether two tensors of conditioning hold the same numbers.
    """

    def __init__(self, steps: int, equal: Callable[[paddle.Tensor, paddle.Tensor], bool]) -> None:
        self._steps, self._equal = steps, equal
        self._since_fresh = -1
        self._before: list[_Kept] = []
        self._now: list[_Kept] = []

    def start_step(self, *, follows: bool) -> None:
        """A step begins. ``follows``: on the last one of the same denoising."""
        self._since_fresh = self._since_fresh + 1 if follows else 0
        self._before = [] if self._since_fresh % self._steps == 0 else self._now
        self._now = []

    def matchings(self, shape: Sequence[int], conditioning: Sequence[paddle.Tensor]) -> Matchings:
        """What the matchings of a call are kept in: filled by an earlier step, or empty.

        A step may call the denoiser several times: for the prompted and the unprompted half, or for two pictures in
        turns. A call takes over from the one call of the step before that was given latents of its shape and the same
        conditioning; where there were several such calls, from none.

        Args:
            shape: of the latents.
            conditioning: the tensors that the denoiser is given beside them.
        """
        found = [kept for kept in self._before if kept.shape == shape and self._same(kept.conditioning, conditioning)]
        taken_over = found[0].matchings if len(found) == 1 else {}
        if any(kept.matchings is taken_over for kept in self._now):
            taken_over = {}  # one call cannot be two of the next step
        self._now.append(_Kept(shape, conditioning, taken_over))
        return taken_over

    def _same(self, one: Sequence[paddle.Tensor], other: Sequence[paddle.Tensor]) -> bool:
        """Pipelines hand their denoiser the very same tensors in every step, or make equal ones anew."""
        return len(one) == len(other) and all(a is b or self._equal(a, b) for a, b in zip(one, other, strict=True))
