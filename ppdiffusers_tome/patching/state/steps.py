"""The steps of a denoising; this module does not import Paddle.

A step is a place in the list of timesteps of the pipeline's scheduler, as values tell little: they run from 1.64 to
-1.55 in Stable Video Diffusion, and are shifted in flow matching. Steps that follow one another without a gap are a
run. What is not the next step begins another run, and shares nothing with what came before. So a step has a place in
its list, a number in its run, and a time: its place where steps of one timestep count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

# A timestep may be rounded to bfloat16, which has 8 bits; that of FLUX is also divided and multiplied by 1000, and
# rounded each time.
_ROUNDING = 2.0**-7
# Of the range of a list, the most by which two entries of one timestep differ: those of second order repeat it rounded.
_SAME = 1e-5


class Step(NamedTuple):
    """The place of a denoiser's call in a denoising.

    Attributes:
        progress: 0 for the first step of pure noise, at most 1; None if unknown.
        is_new_step: False for another call of the same step.
        continues: True if the step is the next one of the same run.
        number: of the step in its run, from 0; None where its timestep is on no list.
        num_steps: of the run; None like ``number``.
        time: the place of the timestep among the different ones of its list, the same in two steps that share it.
    """

    progress: float | None
    is_new_step: bool = False
    continues: bool = False
    number: int | None = None
    num_steps: int | None = None
    time: int = 0


class Schedule:
    """The timesteps that a scheduler has set.

    Args:
        source: the scheduler's own list or tensor, another object each time that it sets its timesteps.
        timesteps: the numbers in it.
    """

    def __init__(self, source: Any, timesteps: Sequence[float]) -> None:
        self.source, self.timesteps = source, timesteps
        whole = abs(timesteps[-1] - timesteps[0]) if timesteps else 0.0
        differs = (abs(later - earlier) > _SAME * whole for earlier, later in pairwise(timesteps))
        self.times = list(accumulate(differs, initial=0))

    def __len__(self) -> int:
        return len(self.timesteps)

    def find_places(self, timestep: float) -> list[int]:
        """Return the places of a timestep, maybe rounded."""
        distances = [abs(entry - timestep) for entry in self.timesteps]
        nearest = min(distances, default=float("inf"))
        if nearest > _ROUNDING * abs(timestep):
            return []
        return [place for place, distance in enumerate(distances) if distance == nearest]

    def find_first(self, timestep: float) -> int:
        """Return the place where a denoising begins with a timestep."""
        places = self.find_places(timestep)
        # Image-to-image cuts a list of second order (Heun, not PNDM) after the call that ends a step.
        is_second_order = self.times == [(place + 1) // 2 for place in range(len(self))]
        return places[1] if is_second_order and len(places) > 1 else places[0]


class StepFinder:
    """The steps of one denoiser in a call of its pipeline.

    Some pipelines give their denoiser another value than a timestep, such as a logarithm of the noise: where the first
    value is on no list, every new one is a step.
    """

    def __init__(self) -> None:
        self._schedule = Schedule(None, ())
        self._is_listed = True
        self._place = -1
        self._timestep: float | None = None
        self._first = self._end = 0  # of the run
        # Calls of this step, and of each: two halves, say, or two images in turns.
        self._calls = self._calls_per_step = 1

    def find_step(self, schedules: Sequence[Schedule], timestep: float, num_steps: int | None = None) -> Step:
        """Return the step of the next call.

        Args:
            schedules: of the pipeline's schedulers, the denoiser's first; at least one.
            timestep: of the call.
            num_steps: what the pipeline says it runs, maybe fewer than its list has; None if it does not say.
        """
        is_same_list = any(each.source is self._schedule.source for each in schedules)
        if is_same_list and timestep == self._timestep and not self._is_listed_again(timestep):
            self._calls += 1
            if self._place == self._first:
                self._calls_per_step = self._calls
            return self._describe_step(is_new_step=False, continues=False)
        place = self._find_next(schedules, timestep) if is_same_list else None
        times = self._schedule.times
        # A gap in the list ends a run; where values are on no list there is none.
        continues = place is not None and (not self._is_listed or times[place] <= times[self._place] + 1)
        if place is None:
            listing = [each for each in schedules if each.find_places(timestep)]
            if is_same_list and self._is_listed and not listing:
                return Step(None)  # what is on no list interrupts nothing
            # A denoising begins where its list does, or image-to-image inside of it.
            beginning = [each for each in listing if 0 in each.find_places(timestep)]
            self._schedule, self._is_listed = (beginning or listing or schedules)[0], bool(listing)
            place = self._schedule.find_first(timestep) if listing else 0
            self._end = min(place + (num_steps or len(self._schedule)), len(self._schedule))
        if not continues:
            self._first, self._calls_per_step = place, 1
        self._place, self._timestep, self._calls = place, timestep, 1
        return self._describe_step(is_new_step=True, continues=continues)

    def _is_listed_again(self, timestep: float) -> bool:
        """Return whether a repeated timestep is the next step (PNDM, Heun)."""
        is_next = self._is_listed and self._place + 1 in self._schedule.find_places(timestep)
        return is_next and self._calls >= self._calls_per_step

    def _find_next(self, schedules: Sequence[Schedule], timestep: float) -> int | None:
        """Return the place of a timestep after the last step, or None."""
        if self._is_listed:
            return next((place for place in self._schedule.find_places(timestep) if place > self._place), None)
        # What came before may have been no step, such as a call to warm up.
        return None if any(each.timesteps[0] == timestep for each in schedules) else self._place + 1

    def _describe_step(self, *, is_new_step: bool, continues: bool) -> Step:
        """Describe the step at the present place."""
        place, length = self._place, len(self._schedule)
        return Step(
            place / max(length, place + 1), is_new_step, continues,
            number=place - self._first if place < length else None, num_steps=self._end - self._first,
            time=self._schedule.times[place] if self._is_listed else place,
        )  # fmt: skip
