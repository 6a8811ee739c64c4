"""Reuse over denoising steps: which matchings a call of the denoiser may take over from earlier calls. Knows no Paddle.

Whatever cannot be told to belong together gets matchings of its own: it is then slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Matchings = dict[Any, Any]


@dataclass(eq=False)
class _Kept:
    """What one call of a step may hand on.

    Attributes:
        shape: of the latents it was given.
        conditioning: the tensors beside them: the text, class labels and the like. Held, so that each stays the same
            object for as long as it is compared.
        matchings: of its blocks.
    """

    shape: Any
    conditioning: Sequence[Any]
    matchings: Matchings = field(default_factory=dict)

    def shares(self, conditioning: Sequence[Any]) -> int:
        """How many of the tensors are its own: pipelines hand the same ones to the denoiser in every step."""
        own = {id(tensor) for tensor in self.conditioning}
        return sum(id(tensor) in own for tensor in conditioning)


class StepReuse:
    """The matchings that the steps of one denoising share.

    Args:
        steps: how many steps share theirs.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._since_fresh = -1
        self._before: list[_Kept] = []
        self._now: list[_Kept] = []

    def start_step(self, *, follows: bool) -> None:
        """A step begins. ``follows``: on the last one of the same denoising."""
        self._since_fresh = self._since_fresh + 1 if follows else 0
        self._before = [] if self._since_fresh % self._steps == 0 else self._now
        self._now = []

    def matchings(self, shape: Any, conditioning: Sequence[Any], *, alone: bool) -> Matchings:
        """What the matchings of a call are kept in: filled by an earlier step, or empty.

        A step may call the denoiser several times: for the prompted and the unprompted half, or for two pictures in
        turns. A call takes over from the one call of the step before that had the same shape and shares most of its
        conditioning; where two share as much, from neither.

        Args:
            shape: of the latents.
            conditioning: the tensors that the denoiser is given beside them.
            alone: it is known that no other picture can be meant, so an only call of a step need not be recognised by
                its conditioning (which some pipelines make anew in every step).
        """
        same_shape = [kept for kept in self._before if kept.shape == shape]
        shared = [kept.shares(conditioning) for kept in same_shape]
        most = max(shared, default=0)
        found = [kept for kept, number in zip(same_shape, shared, strict=True) if number == most]
        recognised = most > 0 or (len(same_shape) == 1 and (alone or not conditioning))
        taken_over = found[0].matchings if len(found) == 1 and recognised else {}
        if any(kept.matchings is taken_over for kept in self._now):
            taken_over = {}  # one call cannot be two of the next step
        self._now.append(_Kept(shape, conditioning, taken_over))
        return taken_over
