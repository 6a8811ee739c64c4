"""How far a denoising is: the place of a timestep among those of the scheduler, or what timesteps alone tell.

A pipeline tells where a denoising begins and ends, and its scheduler which steps it has (``SchedulerTracker``). A
denoiser that is called by itself has only the timesteps that it is given (``TimestepTracker``). Knows no Paddle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

# A model may be given a timestep rounded to bfloat16, which has 8 bits; FLUX's is also divided and multiplied by 1000,
# and rounded each time.
_ROUNDING = 2.0**-7
_EVEN = 2.0  # a distance between two steps at most this many times the one before, nor fewer


class Step(NamedTuple):
    """Where a call of a denoiser stands.

    Attributes:
        progress: of the denoising, 0 for the first step of pure noise, below or at 1; None where it cannot be told.
        starts: whether a step begins with this call; otherwise it is another call of the same step.
        follows: whether that step is the next of the same denoising.
    """

    progress: float | None
    starts: bool
    follows: bool


class Steps(Protocol):
    """The steps of a denoising, as one denoiser sees them."""

    def at(self, timestep: float) -> Step:
        """The denoiser is called with a timestep."""


class Timesteps(Protocol):
    """What a pipeline's schedulers hold, asked at every call: a user may replace them at any time."""

    def __call__(self) -> Sequence[Sequence[float]]:
        """The timesteps of each scheduler, the main one's first; each the same object until they are set anew."""


class SchedulerTracker:
    """The steps of a denoising in a pipeline that has at least one schedule.

    Progress is the place of the timestep in its scheduler's list. Some pipelines give their denoiser something else (a
    logarithm of the noise); there, progress is the number of steps so far.
    """

    def __init__(self, timesteps: Timesteps) -> None:
        self._schedules = timesteps
        self._schedule: Sequence[float] = ()
        self._listed = False
        self._place = -1
        self._timestep: float | None = None
        self._calls_a_place = 1

    def at(self, timestep: float) -> Step:
        if self._listed and not any(_places_in(schedule, timestep) for schedule in self._schedules()):
            return Step(self._progress(), starts=False, follows=False)  # beside the denoising, such as in a callback
        begins = self._begins(timestep)
        again = not begins and timestep == self._timestep
        if not again or self._is_listed_twice(timestep):
            self._place = self._place_after(timestep)
            starts = True
        else:
            self._calls_a_place = 2  # or more: two halves, or two pictures in turns
            starts = False
        self._timestep = timestep
        return Step(self._progress(), starts=starts, follows=not begins)

    def _progress(self) -> float:
        return self._place / max(len(self._schedule), self._place + 1)

    def _is_listed_twice(self, timestep: float) -> bool:
        """Whether a call with the timestep of the last one is the next step.

        Schedulers of second order list a timestep twice, once for each of two calls. Where each place is called for
        several times, nothing tells which call is which, and all are taken for one step.
        """
        return self._calls_a_place == 1 and self._listed and self._place + 1 in _places_in(self._schedule, timestep)

    def _begins(self, timestep: float) -> bool:
        """Whether this is another denoising than before in the same call of the pipeline; it is then noted."""
        schedules = self._schedules()
        again = timestep == self._timestep
        if any(schedule is self._schedule for schedule in schedules):
            if again or self._place_after(timestep) > self._place:
                return False
        elif self._schedule in schedules and not again and self._place_after(timestep) > self._place:
            # Set anew by a thread that shares the scheduler.
            self._schedule = schedules[schedules.index(self._schedule)]
            return False
        self._schedule, self._place = _schedule_of(timestep, schedules), -1
        self._listed, self._calls_a_place = bool(_places_in(self._schedule, timestep)), 1
        return True

    def _place_after(self, timestep: float) -> int:
        """The place of the next step; a schedule may come to the same timestep once more later on."""
        places = _places_in(self._schedule, timestep) if self._listed else []
        if self._place < 0 and len(places) > 1 and places[0] > 0 and _is_of_second_order(self._schedule):
            return places[1]  # img2img cuts the list behind the call that ends a step
        onwards = [place for place in places if place > self._place]
        return next(iter([*onwards, *places, self._place + 1]))


class TimestepTracker:
    """The steps of a denoiser that is called by itself.

    Progress is read off the timestep, which falls to 0 at the picture. A run of a sampler calls with falling timesteps
    at nearly even distances; the second step of a run is told by nothing, so only from the third on is it known that
    this is the run that was.

    Args:
        noisiest: the timestep of pure noise.
    """

    def __init__(self, max_timestep: float = 1000) -> None:
        self._noisiest = max_timestep
        self._timestep = self._distance = float("nan")

    def at(self, timestep: float) -> Step:
        progress = (self._noisiest - timestep) / self._noisiest if 0 <= timestep <= self._noisiest else None
        if timestep == self._timestep:
            return Step(progress, starts=False, follows=False)
        before, self._distance = self._distance, self._timestep - timestep
        self._timestep = timestep
        # NaN compares as False.
        follows = self._distance > 0 and before / _EVEN <= self._distance <= before * _EVEN
        return Step(progress, starts=True, follows=follows)


def _is_of_second_order(schedule: Sequence[float]) -> bool:
    """Whether all timesteps but the first come twice, as Heun's do; of PNDM's it is the second alone."""
    return len(schedule) > 2 and schedule[1::2] == schedule[2::2]


def _schedule_of(timestep: float, schedules: Sequence[Sequence[float]]) -> Sequence[float]:
    """The schedule that begins with a timestep, or else holds it, or else the first."""
    begun = [each for each in schedules if 0 in _places_in(each, timestep)]
    holding = [each for each in schedules if _places_in(each, timestep)]
    return next(iter([*begun, *holding, *schedules]))


def _places_in(schedule: Sequence[float], timestep: float) -> list[int]:
    """Where a timestep stands, if need be rounded: the nearest entries."""
    distances = [abs(each - timestep) for each in schedule]
    nearest = min(distances, default=float("inf"))
    if nearest > _ROUNDING * abs(timestep):
        return []
    return [place for place, distance in enumerate(distances) if distance == nearest]
