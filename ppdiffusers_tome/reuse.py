"""Reuse over denoising steps: which matchings a call of the denoiser may take over from earlier calls. Knows no Paddle.

A denoiser sees calls, not pictures, so what belongs together is read off the timesteps: a run of a sampler calls with
falling timesteps at nearly even distances. Whatever does not look so gets matchings of its own; it is then slower,
never wrong.
"""

from __future__ import annotations

from typing import Any

# Prompted and unprompted halves, Heun's and PNDM's second calls of a step: more calls a step than any sampler makes.
_MOST_CALLS_A_STEP = 8
_EVEN = 2.0  # a distance between two steps at most this many times the one before, nor fewer


class StepReuse:
    """Counts the steps of one run and hands out its matchings.

    Args:
        steps: how many steps share their matchings.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._kept: list[dict[Any, Any]] = []  # by number of the call in its step
        self._timestep = self._distance = float("nan")
        self._since_fresh = self._calls = 0

    def matchings(self, timestep: float) -> dict[Any, Any]:
        """What the matchings of a call are kept in: filled by an earlier step of the run, or empty.

        The n-th call of a step takes over from the n-th call of the steps before, so prompted and unprompted halves in
        two calls keep to themselves.
        """
        if timestep != self._timestep:
            self._start_step(timestep)
        if self._calls == _MOST_CALLS_A_STEP:
            return {}  # no sampler: the same timestep again and again
        if self._calls == len(self._kept):
            self._kept.append({})
        self._calls += 1
        return self._kept[self._calls - 1]

    def _start_step(self, timestep: float) -> None:
        before, self._distance = self._distance, self._timestep - timestep
        self._timestep, self._calls = timestep, 0
        # The second step of a run is told by nothing (NaN compares as False): only from the third on is it known
        # that this is the run that was, not one that begins where another was broken off.
        same_run = self._distance > 0 and before / _EVEN <= self._distance <= before * _EVEN
        self._since_fresh = self._since_fresh + 1 if same_run else 0
        if self._since_fresh % self._steps == 0:
            self._kept = []
