"""The steps of a denoising; this module does not import Paddle.

A step is a place in the list of timesteps of the pipeline's scheduler, as values tell little: they run from 1.64 to
-1.55 in Stable Video Diffusion, and are shifted in flow matching. Steps that follow one another without a gap are a
run. What is not the next step begins another run, and shares nothing with what came before. So a step has a place in
its list, a number in its run, and a time: its place where steps of one timestep count once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

# A timestep may be rounded to bfloat16, which has 8 bits; that of FLUX is also divided and multiplied by 1000, and
# rounded each time.
_ROUNDING = 2.0**-7
# Of the range of a list, the most by which two entries of one timestep differ: those of second order repeat it rounded.
_SAME = 1e-5


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a denoising, the same object in all its calls."""

    progress: float  # 0 for the first step of pure noise, below 1
    number: int  # of the step in its run, from 0
    num_steps: int  # of the run
    time: int  # the place of the timestep among the different ones of its list, the same in two steps that share it
    place: int  # of the step in its list, from 0


class TimestepList:
    """A scheduler's timesteps, another object each time that it sets them."""

    def __init__(self, timesteps: Sequence[float]) -> None:
        self.timesteps = timesteps
        whole = abs(timesteps[-1] - timesteps[0]) if timesteps else 0.0
        differs = (abs(later - earlier) > _SAME * whole for earlier, later in pairwise(timesteps))
        self.times = list(accumulate(differs, initial=0))

    def find_places(self, timestep: float) -> list[int]:
        """Return the places of a timestep, maybe rounded."""
        distances = [abs(entry - timestep) for entry in self.timesteps]
        nearest = min(distances, default=float("inf"))
        if nearest > _ROUNDING * abs(timestep):
            return []
        return [place for place, distance in enumerate(distances) if distance == nearest]


class StepFinder:
    """The steps of one denoiser in a call of its pipeline."""

    def __init__(self) -> None:
        self._list = TimestepList(())
        self._end = 0  # of the run, in the list
        self._step: Step | None = None
        self._timestep: float | None = None
        # Calls of this step, and of each: two halves, say, or two images in turns.
        self._calls = self._calls_per_step = 1

    def enter_step(self, lists: Sequence[TimestepList], timestep: float, num_steps: int | None = None) -> Step | None:
        """Enter the step of the call that begins; None on no list.

        The denoiser's own list is the first. The pipeline may run fewer steps than its list has, and say so by
        ``num_steps``.
        """
        step = self._step
        if step is None or self._list not in lists:
            return self._begin(lists, timestep, num_steps)
        places = self._list.find_places(timestep)
        # Equal timesteps may be two steps (PNDM, Heun), of which the first has had its calls.
        is_next = step.place + 1 in places and self._calls >= self._calls_per_step
        if timestep == self._timestep and not is_next:
            self._calls += 1
            if step.number == 0:
                self._calls_per_step = self._calls
            return step
        place = next((place for place in places if place > step.place), None)
        if place is None:
            return self._begin(lists, timestep, num_steps)
        has_gap = self._list.times[place] > step.time + 1  # which ends the run
        return self._advance(place, timestep, number=0 if has_gap else step.number + place - step.place)

    def _begin(self, lists: Sequence[TimestepList], timestep: float, num_steps: int | None) -> Step | None:
        """Begin a denoising; None on no list, which interrupts nothing."""
        fitting = [each for each in lists if each.find_places(timestep)]
        if not fitting:
            return None
        # A denoising begins where its list does. Image-to-image begins inside of it, and with the second of two equal
        # timesteps (Heun).
        self._list = next((each for each in fitting if 0 in each.find_places(timestep)), fitting[0])
        places, length = self._list.find_places(timestep), len(self._list.timesteps)
        place = 0 if 0 in places else places[-1]
        self._end = min(place + (num_steps or length), length)
        return self._advance(place, timestep, number=0)

    def _advance(self, place: int, timestep: float, *, number: int) -> Step:
        if number == 0:
            self._calls_per_step = 1
        self._timestep, self._calls = timestep, 1
        self._step = Step(
            place / len(self._list.timesteps), number, num_steps=self._end - place + number,
            time=self._list.times[place], place=place,
        )  # fmt: skip
        return self._step
