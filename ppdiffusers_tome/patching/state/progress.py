"""The progress of a denoising; this module does not import Paddle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

# A timestep may be rounded to bfloat16, which has 8 bits; that of FLUX is also divided and multiplied by 1000, and
# rounded each time.
_ROUNDING = 2.0**-7
_SAME = 1e-5  # of all of a schedule: those of second order repeat a timestep within a rounding
_EVEN = 2.0  # bound of the ratio of two consecutive distances between steps, and of its inverse

# Returns the timesteps of each scheduler of a pipeline, the main one first. A function, as a user may replace
# schedulers at any time, and a pipeline may set them again.
Schedules = Callable[[], Sequence[Sequence[float]]]


class Step(NamedTuple):
    """The place of a denoiser's call in a denoising.

    Attributes:
        progress: 0 for the first step of pure noise, at most 1; None if unknown.
        is_new_step: False for another call of the same step.
        continues: True if the step is the next one of the same run, in which the noise falls from step to step.
        number: of the step in its run, from 0; None where its timestep is on no schedule.
        num_steps: of the run; None like ``number``.
        time: the place of the timestep among the different ones of its schedule, the same in two steps that share it.
    """

    progress: float | None
    is_new_step: bool
    continues: bool
    number: int | None = None
    num_steps: int | None = None
    time: int = 0


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

    Steps that follow one another without a gap are a run. A run ends where time goes back (RePaint), where a listed
    timestep is missing (another cache, a loop that breaks), and where another schedule begins.

    Args:
        schedules: the timesteps of each scheduler, the main one first, read again at every call.
        count_steps: the number of steps that the pipeline says it runs, maybe fewer than its schedule has; None if it
            does not say.
    """

    def __init__(self, schedules: Schedules, count_steps: Callable[[], int | None] = lambda: None) -> None:
        self._schedules, self._count_steps = schedules, count_steps
        self._schedule: Sequence[float] = ()
        self._is_listed = False
        self._times: list[int] = []  # see ``Step.time``
        self._place = -1
        self._first_place = self._end = 0  # of the run; image-to-image begins in the middle
        self._timestep: float | None = None
        self._calls_per_place = 1
        # Of consecutive timesteps between those of the schedule.
        self._between: TimestepTracker | None = None

    def step_at(self, timestep: float) -> Step:
        """Track a call with a timestep and return its step."""
        if self._is_listed and not any(_find_places(schedule, timestep) for schedule in self._schedules()):
            return self._step_between(timestep)
        self._between = None
        begins = self._begin_schedule(timestep)
        is_new_step = begins or timestep != self._timestep or self._is_listed_twice(timestep)
        before = self._place
        if is_new_step:
            self._place = self._next_place(timestep)
        else:
            self._calls_per_place = 2  # or more: two halves, or two images in turns
        self._timestep = timestep
        progress = self._place / max(len(self._schedule), self._place + 1)
        if not self._is_listed:  # another value, such as a logarithm of the noise: one call is one step
            steps = len(self._schedule)
            number = self._place if self._place < steps else None
            return Step(
                progress, is_new_step=is_new_step, continues=not begins, number=number, num_steps=steps,
                time=self._place,
            )  # fmt: skip
        time = self._times[self._place]
        if begins:
            self._end = min(self._place + (self._count_steps() or len(self._schedule)), len(self._schedule))
        if begins or self._goes_back(before, self._place) or time > self._times[before] + 1:
            self._first_place, begins = self._place, True
        return Step(
            progress, is_new_step=is_new_step, continues=not begins, number=self._place - self._first_place,
            num_steps=self._end_of_run() - self._first_place, time=time,
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

    def _begin_schedule(self, timestep: float) -> bool:
        """Begin a schedule, maybe the same one again, if necessary; return whether."""
        schedules = self._schedules()
        advances = timestep == self._timestep or self._next_place(timestep) > self._place
        # Compared by value: a pipeline may copy its scheduler for every call (Panorama), and a thread may set it again.
        if self._schedule in schedules and advances:
            return False
        # The one that begins with the timestep, else one that has it, else the first.
        beginning = [schedule for schedule in schedules if 0 in _find_places(schedule, timestep)]
        holding = [schedule for schedule in schedules if _find_places(schedule, timestep)]
        self._schedule, self._place = [*beginning, *holding, *schedules][0], -1
        self._is_listed, self._calls_per_place = bool(_find_places(self._schedule, timestep)), 1
        same = _SAME * abs(self._schedule[-1] - self._schedule[0])
        differs = (abs(later - earlier) > same for earlier, later in pairwise(self._schedule))
        self._times = list(accumulate(differs, initial=0))
        return True

    def _next_place(self, timestep: float) -> int:
        """Return the place of the next step; schedules may repeat timesteps."""
        places = _find_places(self._schedule, timestep) if self._is_listed else []
        # All timesteps but the first come twice in Heun's schedules; of PNDM's only the second does.
        is_second_order = self._times == [(place + 1) // 2 for place in range(len(self._schedule))]
        if self._place < 0 and len(places) > 1 and places[0] > 0 and is_second_order:
            return places[1]  # img2img cuts the list after the call that ends a step
        later = [place for place in places if place > self._place]
        if later and self._goes_back(self._place, later[0]):
            # RePaint lists the way back to more noise, too, and calls no denoiser on it.
            later.sort(key=lambda place: self._goes_back(place, min(place + 1, len(self._schedule) - 1)))
        return [*later, *places, self._place + 1][0]

    def _goes_back(self, place: int, other: int) -> bool:
        """Return whether time goes back from one place of the schedule to another."""
        if place < 0:
            return False
        whole = self._schedule[-1] - self._schedule[0]
        return (self._schedule[other] - self._schedule[place]) * whole < -_SAME * whole * whole

    def _end_of_run(self) -> int:
        """Return the place after the last step from which time does not go back."""
        places = range(self._place, self._end - 1)
        return next((place + 1 for place in places if self._goes_back(place, place + 1)), self._end)


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
