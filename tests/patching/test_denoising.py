"""The place of a call in its denoising, by timesteps and schedules alone."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import ppdiffusers
import pytest

from ppdiffusers_tome.patching.state.steps import Step, StepFinder, TimestepList

DOWN = [999.0, 749.0, 499.0, 249.0]


class Steps:
    """The steps of a denoiser whose pipeline has these schedules, which may be set anew."""

    def __init__(self, *schedules: Sequence[float]) -> None:
        self.finder = StepFinder()
        self.set_timesteps(*schedules)

    def set_timesteps(self, *schedules: Sequence[float]) -> None:
        self.schedules = [TimestepList(timesteps) for timesteps in schedules]

    def step_at(self, timestep: float) -> Step | None:
        return self.finder.enter_step(self.schedules, timestep)


def places(steps: Steps, timesteps: Sequence[float]) -> list[float | None]:
    return [steps.step_at(timestep).progress for timestep in timesteps]


PRIOR, DECODER = [999.0, 500.0], [800.0, 500.0, 200.0, 50.0]
UP_AND_DOWN, TWICE = [9.0, 6.0, 3.0, 6.0, 3.0, 0.0], [9.0, 7.0, 7.0, 5.0, 5.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("schedules", "timesteps", "progress"),
    [
        pytest.param([DOWN], DOWN, [0, 0.25, 0.5, 0.75], id="whole"),
        pytest.param([DOWN], DOWN[2:], [0.5, 0.75], id="img2img begins in the middle"),
        pytest.param([[1000, 997, 751, 3.01]], [1000, 996, 752, 3], [0, 0.25, 0.5, 0.75], id="rounded to bfloat16"),
        pytest.param([UP_AND_DOWN], UP_AND_DOWN, [place / 6 for place in range(6)], id="RePaint goes up again"),
        pytest.param([PRIOR, DECODER], DECODER, [0, 0.25, 0.5, 0.75], id="of two the one that begins so"),
        pytest.param([PRIOR, DECODER], DECODER[2:], [0.5, 0.75], id="of two the one that goes on so"),
        # Pipelines cut such lists before a whole step, as ppdiffusers' schedulers take for granted too.
        pytest.param([TWICE], [7.0], [2 / 7], id="of second order the second of two"),
        pytest.param([TWICE], [5.0], [4 / 7], id="of second order the second of two later"),
    ],
)
def test_progress_is_the_place_in_the_schedule(
    schedules: list[list[float]], timesteps: list[float], progress: list[float]
) -> None:
    assert places(Steps(*schedules), timesteps) == progress


@pytest.mark.parametrize("shift", [0.5, 0.65, 1.15])
def test_a_timestep_that_is_rounded_three_times_is_the_nearest(shift: float) -> None:
    """FLUX in bfloat16: rounded, divided by 1000 in its pipeline, and multiplied again in the model."""

    def round_to_bfloat16(number: float) -> float:
        bits = np.float32(number).view(np.uint32)
        return float(((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32))

    def round_as_flux(timestep: float) -> float:
        return round_to_bfloat16(round_to_bfloat16(round_to_bfloat16(timestep) / 1000) * 1000)

    for number in range(4, 61):
        sigmas = np.linspace(1.0, 1 / number, number)
        schedule = [float(each) for each in 1000 * np.exp(shift) / (np.exp(shift) + 1 / sigmas - 1)]
        steps = Steps(schedule)
        found = [steps.step_at(round_as_flux(timestep)) for timestep in schedule]
        assert [each.progress for each in found] == pytest.approx([place / number for place in range(number)]), number
        assert len({*map(id, found)}) == number


@pytest.mark.parametrize(
    ("timesteps", "numbers"),
    [
        pytest.param([1.0, *DOWN], [None, 0, 1, 2, 3], id="a call before the denoising is no step of it"),
        pytest.param([999.0, 600.0, 749.0], [0, None, 1], id="nor one in it on no list, as of a callback"),
        # Whoever skipped its call knows nothing of what this keeps.
        pytest.param([999.0, 499.0, 249.0], [0, 0, 1], id="a missing timestep begins another run"),
        pytest.param([999.0, 749.0, 249.0], [0, 1, 0], id="also a later one"),
    ],
)
def test_steps_are_numbered_in_their_run(timesteps: list[float], numbers: list[int | None]) -> None:
    assert [step and step.number for step in map(Steps(DOWN).step_at, timesteps)] == numbers


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_several_calls_of_one_step_are_counted_in_the_first(calls: int) -> None:
    """So two equal timesteps are two steps."""
    schedule = [9.0, 5.0, 5.0, 1.0]
    steps = Steps(schedule)
    found = [steps.step_at(timestep) for timestep in schedule for _ in range(calls)]
    steps_of_calls = [found.index(step) for step in found]  # a step is one object
    assert steps_of_calls == [calls * (call // calls) for call in range(4 * calls)]
    assert [step.progress for step in found] == [place / 4 for place in range(4) for _ in range(calls)]


@pytest.mark.parametrize("again", [DOWN, [800.0, 400.0], None], ids=["the same timesteps", "others", "set once"])
def test_a_second_pass_in_one_call_of_a_pipeline_is_another_denoising(again: list[float] | None) -> None:
    steps = Steps(DOWN)
    places(steps, DOWN)
    if again:
        steps.set_timesteps(again)
    one, other, *_ = again or DOWN
    first = steps.step_at(one)
    assert (first.progress, first.number, steps.step_at(other).number) == (0, 0, 1)


def test_inversion_and_denoising_in_one_call() -> None:
    """Both schedulers are set at the start; the last timestep of the one is the first of the other."""
    steps = Steps(DOWN, DOWN[::-1])
    assert places(steps, DOWN[::-1]) == [0, 0.25, 0.5, 0.75]
    assert places(steps, DOWN)[1:] == [0.25, 0.5, 0.75]


def test_another_schedule_after_the_first_one_in_one_call() -> None:
    """No timestep of the second is in the first, which may end with any."""
    for end in range(1, len(DOWN) + 1):
        steps = Steps(DOWN, [800.0, 600.0, 400.0])
        places(steps, DOWN[:end])
        found = [steps.step_at(timestep) for timestep in (800.0, 600.0, 400.0)]
        assert [each.progress for each in found] == pytest.approx([0, 1 / 3, 2 / 3])
        assert [each.number for each in found] == [0, 1, 2]


def test_timesteps_that_are_set_in_the_middle_begin_anew() -> None:
    """As Panorama sets them, which copies its scheduler for every view, and a thread without a pipeline of its own."""
    steps = Steps(DOWN)
    steps.step_at(DOWN[0])
    steps.set_timesteps(DOWN)
    step = steps.step_at(DOWN[1])
    assert (step.progress, step.number) == (0.25, 0)


def build_schedules() -> dict[str, tuple[list[float], int]]:
    """Return ten steps' timesteps, and the order, of every scheduler that can be built without arguments."""
    found = {}
    for name in sorted(dir(ppdiffusers)):
        if not name.endswith("Scheduler") or name.startswith("Flax"):
            continue
        try:
            settings = dict(skip_prk_steps=True) if name == "PNDMScheduler" else {}  # as Stable Diffusion has it
            scheduler = getattr(ppdiffusers, name)(**settings)
            scheduler.set_timesteps(10)
        except (TypeError, ValueError):  # of the consistency decoder, VQ diffusion and the base class
            continue
        timesteps = [float(timestep) for timestep in np.asarray(scheduler.timesteps).reshape(-1)]
        order = getattr(scheduler, "order", 1) if len(timesteps) > 11 else 1  # LMS says 4, and lists each step once
        found[name] = timesteps, order
    assert len(found) >= 30
    return found


SCHEDULES = build_schedules()


@pytest.mark.parametrize("begins", [0, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_scheduler_of_ppdiffusers_is_one_run_from_wherever_it_begins(name: str, begins: int) -> None:
    schedule, order = SCHEDULES[name]
    called = schedule[begins * order :]
    steps = Steps(schedule)
    found = [steps.step_at(timestep) for timestep in called]
    assert [step.number for step in found] == list(range(len(called)))
    assert {step.num_steps for step in found} == {len(called)}
    different = [abs(later - earlier) > 1e-3 * abs(earlier) for earlier, later in pairwise(called)]
    assert [later.time - earlier.time for earlier, later in pairwise(found)] == different


@pytest.mark.parametrize("train_steps", [100, 1000])
@pytest.mark.parametrize("num_steps", [10, 50])
@pytest.mark.parametrize("name", ["KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler"])
def test_a_list_that_rounds_one_of_two_timesteps_is_one_run(name: str, num_steps: int, train_steps: int) -> None:
    """So the next one is above it by a part of a whole number: 935.866, 936."""
    scheduler = getattr(ppdiffusers, name)(use_karras_sigmas=True, num_train_timesteps=train_steps)
    scheduler.set_timesteps(num_steps)
    schedule = scheduler.timesteps.tolist()
    steps = Steps(schedule)
    assert {steps.step_at(timestep).num_steps for timestep in schedule} == {len(schedule)}
