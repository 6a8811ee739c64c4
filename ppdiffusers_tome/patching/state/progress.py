"""The progress of a denoising; this module does not import Paddle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

# A timestep may be rounded to bfloat16, which has 8 bits; that of FLUX is also divided and multiplied by 1000, and
# rounded each time.
_ROUNDING = 2.0**-7
_EVEN = 2.0  # bound of the ratio of two consecutive distances between steps, and of its inverse

# Returns the timesteps of each scheduler of a pipeline, the main one first; each is the same object until it is set
# again. A function, as a user may replace schedulers at any time.
Schedules = Callable[[], Sequence[Sequence[float]]]


class Step(NamedTuple):
    """The place of a denoiser's call in a denoising.

    Attributes:
        progress: 0 for the first step of pure noise, at most 1; None if unknown.
        is_new_step: False for another call of the same step.
        continues: True if the step is the next of the same denoising.
        number: of the step in its denoising, from 0; None if unknown.
        num_steps: of the denoising; None if unknown.
    """

    progress: float | None
    is_new_step: bool
    continues: bool
    number: int | None = None
    num_steps: int | None = None


class TimestepTracker:
    """A tracker for a denoiser without a pipeline.

    Progress is computed from the timestep, which falls to 0 at the image. A sampler uses falling timesteps at nearly
    even distances, so a run is detected at its third step.
    """

    def __init__(self, max_timestep: float = 1000) -> None:
        self._max_timestep = max_timestep
        self._timestep = self._distance = float("nan")

    def step_at(self, timestep: float) -> Step:
        """Track a call with a timestep and return its step."""
        in_range = 0 <= timestep <= self._max_timestep
        progress = (self._max_timestep - timestep) / self._max_timestep if in_range else None
        if timestep == self._timestep:
            return Step(progress, is_new_step=False, continues=False)
        before, self._distance = self._distance, self._timestep - timestep
        self._timestep = timestep
        # NaN compares as False.
        continues = self._distance > 0 and before / _EVEN <= self._distance <= before * _EVEN
        return Step(progress, is_new_step=True, continues=continues)


class SchedulerTracker:
    """A tracker for a pipeline that has at least one schedule.

    Progress is the place of the timestep in its scheduler's list. Some pipelines pass another value to their denoiser,
    such as a logarithm of the noise: then progress counts steps. A timestep between two of the list, such as a Karras
    level of a pipeline's own loop, has a progress between theirs.
    """

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._schedule: Sequence[float] = ()
        self._is_listed = False
        self._place = -1
        self._first_place = 0  # image-to-image begins in the middle
        self._timestep: float | None = None
        self._calls_per_place = 1
        # Of consecutive timesteps between those of the schedule.
        self._between: TimestepTracker | None = None

    def step_at(self, timestep: float) -> Step:
        """Track a call with a timestep and return its step."""
        if self._is_listed and not any(_find_places(schedule, timestep) for schedule in self._schedules()):
            return self._step_between(timestep)
        self._between = None
        begins = self._begin(timestep)
        repeats = not begins and timestep == self._timestep
        is_new_step = not repeats or self._is_listed_twice(timestep)
        if is_new_step:
            self._place = self._next_place(timestep)
            if begins:
                self._first_place = self._place
        else:
            self._calls_per_place = 2  # or more: two halves, or two images in turns
        self._timestep = timestep
        length = max(len(self._schedule), self._place + 1)
        return Step(
            self._place / length, is_new_step=is_new_step, continues=not begins,
            number=self._place - self._first_place, num_steps=length - self._first_place,
        )  # fmt: skip

    def _step_between(self, timestep: float) -> Step:
        """Return the step of a timestep that is on no list.

        A single one is not part of the denoising: it is a callback's, for example.
        """
        is_alone, self._between = self._between is None, self._between or TimestepTracker()
        step = self._between.step_at(timestep)
        progress = _interpolate_place(self._schedule, timestep) / len(self._schedule)
        if is_alone:
            return Step(progress, is_new_step=False, continues=False)
        return step._replace(progress=progress)

    def _is_listed_twice(self, timestep: float) -> bool:
        """Return whether a call that repeats a timestep is the next step.

        Schedulers of second order list a timestep twice, once for each of two calls. If each place has several calls,
        they cannot be distinguished, and all count as one step.
        """
        return self._calls_per_place == 1 and self._is_listed and self._place + 1 in _find_places(
            self._schedule, timestep
        )

    def _begin(self, timestep: float) -> bool:
        """Begin another denoising of the pipeline's call if necessary; return whether."""
        schedules = self._schedules()
        advances = timestep == self._timestep or self._next_place(timestep) > self._place
        if any(schedule is self._schedule for schedule in schedules) and advances:
            return False
        if self._schedule in schedules and timestep != self._timestep and advances:
            # Set again by a thread that shares the scheduler.
            self._schedule = schedules[schedules.index(self._schedule)]
            return False
        # The one that begins with the timestep, else one that has it, else the first.
        beginning = [schedule for schedule in schedules if 0 in _find_places(schedule, timestep)]
        holding = [schedule for schedule in schedules if _find_places(schedule, timestep)]
        self._schedule, self._place = [*beginning, *holding, *schedules][0], -1
        self._is_listed, self._calls_per_place = bool(_find_places(self._schedule, timestep)), 1
        return True

    def _next_place(self, timestep: float) -> int:
        """Return the place of the next step; schedules may repeat timesteps."""
        places = _find_places(self._schedule, timestep) if self._is_listed else []
        # All timesteps but the first come twice in Heun's schedules; of PNDM's only the second does.
        is_second_order = len(self._schedule) > 2 and self._schedule[1::2] == self._schedule[2::2]
        if self._place < 0 and len(places) > 1 and places[0] > 0 and is_second_order:
            return places[1]  # img2img cuts the list after the call that ends a step
        later = [place for place in places if place > self._place]
        return [*later, *places, self._place + 1][0]


def _find_places(schedule: Sequence[float], timestep: float) -> list[int]:
    """Return the places of a timestep, maybe rounded, in a schedule."""
    distances = [abs(entry - timestep) for entry in schedule]
    nearest = min(distances, default=float("inf"))
    if nearest > _ROUNDING * abs(timestep):
        return []
    return [place for place, distance in enumerate(distances) if distance == nearest]


def _interpolate_place(schedule: Sequence[float], timestep: float) -> float:
    """Return the interpolated place of a timestep in a falling schedule."""
    for place, (entry, following) in enumerate(pairwise(schedule)):
        if entry >= timestep > following:
            return place + (entry - timestep) / (entry - following)
    return 0.0 if not schedule or timestep > schedule[0] else float(len(schedule) - 1)
