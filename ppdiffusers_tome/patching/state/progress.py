"""The progress of a denoising; this module does not import Paddle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

# A timestep may be rounded to bfloat16, which has 8 bits; that of FLUX is also divided and multiplied by 1000, and
# rounded each time.
_ROUNDING = 2.0**-7
_SAME = 1e-5  # of all of a schedule: those of second order repeat a timestep within a rounding
_ROUNDED, _RANGE = 0.6, 50  # KDPM2's, of a range of so many or more, may round one of two to a whole number
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


class Schedule:
    """The timesteps of a scheduler, maybe repeated, in order.

    Attributes:
        timesteps: none before the first call.
        times: the place of each timestep among the different ones, the same for two that are equal.
    """

    def __init__(self, timesteps: Sequence[float]) -> None:
        self.timesteps = timesteps
        self._whole = timesteps[-1] - timesteps[0] if timesteps else 0.0
        self._rounding = _ROUNDED if abs(self._whole) >= _RANGE else _SAME * abs(self._whole)
        differs = (abs(later - earlier) > _SAME * abs(self._whole) for earlier, later in pairwise(timesteps))
        self.times = list(accumulate(differs, initial=0))

    def __len__(self) -> int:
        return len(self.timesteps)

    @property
    def is_second_order(self) -> bool:
        """True where all timesteps but the first come twice (Heun, not PNDM)."""
        return self.times == [(place + 1) // 2 for place in range(len(self))]

    def goes_back(self, place: int, other: int) -> bool:
        """Return whether time goes back from one place to another."""
        back = self.timesteps[place] - self.timesteps[other]
        return (back if self._whole > 0 else -back) > self._rounding

    def end_of_run(self, place: int, end: int) -> int:
        """Return the place after the last one of a run, at most `end`."""
        return next((each + 1 for each in range(place, end - 1) if self.goes_back(each, each + 1)), end)

    def next_place(self, place: int, timestep: float) -> int:
        """Return the next place of a listed timestep; -1 is before the first."""
        places = find_places(self.timesteps, timestep)
        if place < 0 and len(places) > 1 and places[0] > 0 and self.is_second_order:
            return places[1]  # img2img cuts the list after the call that ends a step
        later = [each for each in places if each > place]
        if later and place >= 0 and self.goes_back(place, later[0]):
            # RePaint lists the way back to more noise, too, and calls no denoiser on it.
            later.sort(key=lambda each: self.goes_back(each, min(each + 1, len(self) - 1)))
        return [*later, *places][0]

    def interpolate_progress(self, timestep: float) -> float:
        """Return the progress of a timestep between those of a falling schedule."""
        for place, (entry, following) in enumerate(pairwise(self.timesteps)):
            if entry >= timestep > following:
                return (place + (entry - timestep) / (entry - following)) / len(self)
        return 0.0 if timestep > self.timesteps[0] else (len(self) - 1) / len(self)


class SchedulerTracker:
    """A tracker for a pipeline that has at least one schedule.

    Progress is the place of the timestep in its scheduler's list. Some pipelines pass another value to their denoiser,
    such as a logarithm of the noise: then each call is a step. A timestep between two of the list, such as a Karras
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
        self._schedule = Schedule(())
        self._is_listed = False  # False for other values
        self._place = -1
        self._first_place = self._end = 0  # of the run; image-to-image begins in the middle
        self._timestep: float | None = None
        self._calls_per_place = 1
        # Of consecutive timesteps between those of the schedule.
        self._between: TimestepTracker | None = None

    def step_at(self, timestep: float) -> Step:
        """Track a call with a timestep and return its step."""
        schedules = self._schedules()
        if self._is_beside(schedules, timestep):
            return self._step_between(timestep)
        self._between = None
        begins = self._begins_schedule(schedules, timestep)
        if begins:
            self._begin_schedule(schedules, timestep)
        before, is_new_step = self._place, begins or timestep != self._timestep or self._is_listed_twice(timestep)
        if is_new_step:
            self._place = self._next_place(timestep)
        else:
            self._calls_per_place = 2  # or more: two halves, or two images in turns
        self._timestep = timestep
        step = Step(self._place / max(len(self._schedule), self._place + 1), is_new_step, continues=not begins)
        return self._add_run(step, before) if self._is_listed else self._add_number(step)

    def _is_beside(self, schedules: Sequence[Sequence[float]], timestep: float) -> bool:
        """Return whether a timestep is on no list, or alone on another list."""
        if not self._is_listed or any(0 in find_places(each, timestep) for each in schedules):
            return False  # a list that begins with it begins
        timesteps = self._schedule.timesteps
        # A single one of another list is a callback's.
        lists = [timesteps] if timesteps in schedules and self._between is None else schedules
        return not any(find_places(each, timestep) for each in lists)

    def _begins_schedule(self, schedules: Sequence[Sequence[float]], timestep: float) -> bool:
        """Return whether a timestep begins another schedule, or this one again."""
        # Compared by value: a pipeline may copy its scheduler for every call (Panorama), and a thread may set it again.
        timesteps = self._schedule.timesteps
        if not self._is_listed and any(each[0] == timestep for each in schedules):
            return True  # what came before was no step, such as a call to warm up
        if timesteps not in schedules or (self._is_listed and not find_places(timesteps, timestep)):
            return True
        return timestep != self._timestep and self._next_place(timestep) <= self._place

    def _begin_schedule(self, schedules: Sequence[Sequence[float]], timestep: float) -> None:
        """Begin the schedule that begins with a timestep, or has it."""
        beginning = [each for each in schedules if 0 in find_places(each, timestep)]
        holding = [each for each in schedules if find_places(each, timestep)]
        self._schedule = Schedule([*beginning, *holding, *schedules][0])
        self._is_listed, self._place, self._calls_per_place = bool(holding), -1, 1

    def _next_place(self, timestep: float) -> int:
        return self._schedule.next_place(self._place, timestep) if self._is_listed else self._place + 1

    def _is_listed_twice(self, timestep: float) -> bool:
        """Return whether a call that repeats a timestep is the next step.

        Schedulers of second order list a timestep twice, once for each of two calls. If each place has several calls,
        they cannot be distinguished, and all count as one step.
        """
        is_one = self._is_listed and self._calls_per_place == 1
        return is_one and self._place + 1 in find_places(self._schedule.timesteps, timestep)

    def _add_run(self, step: Step, before: int) -> Step:
        """Add its place in its run to a step of a listed timestep.

        The step before was at the place `before` of the schedule.
        """
        schedule, place = self._schedule, self._place
        time = schedule.times[place]
        if not step.continues:
            self._end = min(place + (self._count_steps() or len(schedule)), len(schedule))
        continues = step.continues and not schedule.goes_back(before, place) and time <= schedule.times[before] + 1
        if not continues:
            self._first_place = place
        num_steps = schedule.end_of_run(place, self._end) - self._first_place
        number = place - self._first_place
        return step._replace(continues=continues, number=number, num_steps=num_steps, time=time)

    def _add_number(self, step: Step) -> Step:
        """Add its number to a step whose timestep is not listed."""
        number = self._place if self._place < len(self._schedule) else None
        return step._replace(number=number, num_steps=len(self._schedule), time=self._place)

    def _step_between(self, timestep: float) -> Step:
        """Return the step of a timestep that is on no list.

        A single one is not part of the denoising: it is a callback's, for example.
        """
        is_alone, self._between = self._between is None, self._between or TimestepTracker()
        step = self._between.step_at(timestep)
        progress = self._schedule.interpolate_progress(timestep)
        if is_alone:
            return Step(progress, is_new_step=False, continues=False)
        return step._replace(progress=progress)


def find_places(timesteps: Sequence[float], timestep: float) -> list[int]:
    """Return the places of a timestep, maybe rounded, in a list."""
    distances = [abs(entry - timestep) for entry in timesteps]
    nearest = min(distances, default=float("inf"))
    if nearest > _ROUNDING * abs(timestep):
        return []
    return [place for place, distance in enumerate(distances) if distance == nearest]
