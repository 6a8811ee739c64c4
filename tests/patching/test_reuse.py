"""Reuse of matchings over steps: what is shared, and that nothing is shared that must not be."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from patching.contract import count_matchings
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.patching.state import reducer
from ppdiffusers_tome.patching.state.progress import TimestepTracker
from ppdiffusers_tome.patching.step_memory import StepMemory

SETTINGS = dict(ratio=0.5, max_downsample=2)
# Two levels: three blocks on 16x16 and three on 8x8, and the middle one there.
BLOCKS, GRIDS = 7, 2
FALLING = (900, 800, 700, 600, 500, 400, 300)


def count_by_step(unet: tiny.Model, timesteps: tuple[int, ...] = FALLING, **given: Any) -> list[int]:
    with count_matchings(unet) as counts:
        for timestep in timesteps:
            tiny.run_unet(unet, timestep=timestep, **given)
    return counts


def encode(text: str) -> paddle.Tensor:
    return paddle.to_tensor([*text.encode()], dtype="float32")


class WithoutPipeline:
    """The steps of a denoiser without a pipeline, and what they share."""

    def __init__(self, steps: int) -> None:
        self.steps, self.reuse = TimestepTracker(), StepMemory(steps)

    def lookup(self, timestep: float, text: str = "a cat") -> dict:
        step = self.steps.step_at(timestep)
        if step.is_new_step:
            self.reuse.next_step(continues=step.continues)
        return self.reuse.lookup((1, 4, 8, 8), [encode(text)])


@pytest.mark.parametrize(
    ("steps", "timesteps", "fresh"),
    [
        (3, [900, 800, 700, 600, 500, 400, 300, 200], [0, 1, 4, 7]), (1, [900, 800, 700], [0, 1, 2]),
        # Uneven schedules are one run.
        (10, [999, 961, 915, 859, 791, 709, 612, 500], [0, 1]), (10, [1.0, 0.9, 0.8, 0.7], [0, 1]),
        # Another run: at the same timestep, higher, far lower, little lower, one back.
        *((10, [900, 800, 700, other], [0, 1, 3]) for other in (900, 750, 300, 690, 800)),
        # 900 and 800 were another image's: 780 is known by its distance, and so it would be after one step alone.
        (10, [900, 800, 780, 760, 740], [0, 1, 2]), (10, [900, 780, 760, 740], [0, 1, 2]),
        # Rising timesteps, and the same one for ever.
        (10, [100, 200, 300, 400], [0, 1, 2, 3]), (4, [999] * 1000, list(range(1000))),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_steps_that_share_are_told_by_their_timesteps(steps: int, timesteps: list[float], fresh: list[int]) -> None:
    bare, indices = WithoutPipeline(steps), []
    for index, timestep in enumerate(timesteps):
        kept = bare.lookup(timestep)
        if not kept:
            indices.append(index)
        kept[index] = True
    assert indices == fresh


class TestCallsOfAStep:
    """A step may call a denoiser several times. Each call finds its own, or none."""

    @staticmethod
    def start_run(*texts: str) -> WithoutPipeline:
        """A run of two steps, one call a text in each."""
        bare = WithoutPipeline(10)
        for timestep in (900, 800):
            for text in texts:
                bare.lookup(timestep, text)[text] = timestep
        return bare

    def test_each_keeps_to_itself_in_any_order(self) -> None:
        bare = self.start_run("prompted", "unprompted")
        assert [bare.lookup(700, text) for text in ("unprompted", "prompted", "another")] == [
            {"unprompted": 800}, {"prompted": 800}, {},
        ]  # fmt: skip

    @pytest.mark.parametrize("stays", ["prompted", "unprompted"])
    def test_one_that_stops_leaves_nothing_to_the_other(self, stays: str) -> None:
        bare = self.start_run("prompted", "unprompted")
        assert bare.lookup(700, stays) == {stays: 800}

    def test_calls_that_nothing_tells_apart_get_nothing(self) -> None:
        """Two images of one prompt in turns; then one of them alone, which is fresh once more."""
        bare = self.start_run("a cat", "a cat")
        one, other = bare.lookup(700), bare.lookup(700)
        assert one == other == {}
        one["one"] = other["other"] = True
        assert bare.lookup(600) == {}

    def test_an_only_call_with_another_text_is_another_image(self) -> None:
        assert self.start_run("a cat").lookup(700, "a dog") == {}

    def test_a_text_that_is_made_anew_in_every_step_is_the_same(self) -> None:
        """As some pipelines do: other objects, equal values; or none. Latents of another shape are another's."""
        reuse = StepMemory(10)
        reuse.next_step(continues=False)
        reuse.lookup((1,), [encode("a cat")])["made"] = True
        reuse.lookup((1,), [])["made without"] = True
        reuse.next_step(continues=True)
        assert reuse.lookup((2,), [encode("a cat")]) == {}
        assert reuse.lookup((1,), [encode("a cat"), encode("and more")]) == {}
        assert reuse.lookup((1,), [encode("a cat")]) == {"made": True}
        assert reuse.lookup((1,), []) == {"made without": True}


class TestSteps:
    def test_steps_share(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step that takes matchings over makes no partition either."""
        partitions, random_partition = [], reducer.random_partition
        monkeypatch.setattr(
            reducer, "random_partition", lambda *args, **given: partitions.append(1) or random_partition(*args, **given)
        )
        unet = apply_tome(tiny.unet(), reuse_steps=3, **SETTINGS)
        assert count_by_step(unet) == [7, 7, 0, 0, 7, 0, 0]
        assert len(partitions) == 3 * GRIDS

    def test_fresh_steps_are_as_without_reuse(self) -> None:
        plain, kept = apply_tome(tiny.unet(), **SETTINGS), apply_tome(tiny.unet(), reuse_steps=3, **SETTINGS)
        same = [
            np.array_equal(tiny.run_unet(plain, timestep=t), tiny.run_unet(kept, timestep=t)) for t in FALLING
        ]
        assert same == [True, True, False, False, True, False, False]

    @pytest.mark.parametrize("other", [dict(height=8, width=32), dict(height=32), dict(batch=3), dict(batch=1)])
    def test_other_shape_in_the_middle_is_fresh_and_right(self, other: dict) -> None:
        unet = apply_tome(tiny.unet(), reuse_steps=10, **SETTINGS)
        assert count_by_step(unet, FALLING[:3]) == [7, 7, 0]
        output = tiny.run_unet(unet, timestep=600, **other)
        expected = tiny.run_unet(apply_tome(tiny.unet(), **SETTINGS), timestep=600, **other)
        assert np.array_equal(output, expected)

    def test_prompted_and_unprompted_in_two_calls_equal_one_batch(self) -> None:
        one, two = (apply_tome(tiny.unet(), reuse_steps=4, **SETTINGS) for _ in range(2))
        latent, text = tiny.latent(2), tiny.text(2)
        texts = [text[i : i + 1] for i in range(2)]
        for timestep in FALLING:
            moved = latent * (timestep / 900)
            with paddle.no_grad():
                batch = one(moved, timestep, text).sample.numpy()
                halves = [two(moved[i : i + 1], timestep, texts[i]).sample.numpy() for i in range(2)]
            assert np.abs(batch - np.concatenate(halves)).max() <= 1e-5, timestep

    def test_training_is_always_fresh(self) -> None:
        unet = apply_tome(tiny.unet(), reuse_steps=4, **SETTINGS)
        unet.train()
        assert count_by_step(unet) == [7] * 7

    def test_a_part_of_a_model_is_always_fresh_and_says_so(self) -> None:
        part = apply_tome(tiny.unet().down_blocks[0].attentions[0], 0.5, reuse_steps=4)
        with pytest.warns(UserWarning, match="reuse_steps"), paddle.no_grad(), count_matchings(part) as counts:
            outputs = [part(tiny.array((1, 8, 16, 16), seed=s), tiny.text(1)).sample.numpy() for s in (0, 1, 0)]
        assert counts == [1, 1, 1]
        assert np.array_equal(outputs[0], outputs[2])
        assert not np.array_equal(outputs[0], outputs[1])

    def test_a_copy_starts_afresh(self) -> None:
        unet = apply_tome(tiny.unet(), reuse_steps=10, **SETTINGS)
        count_by_step(unet, FALLING[:3])
        assert count_by_step(copy.deepcopy(unet), (600,)) == [7]


class TestPipelines:
    REUSE: ClassVar = dict(ratio=0.5, reuse_steps=3)

    def test_a_model_in_training_mode_reuses_in_its_pipeline(self) -> None:
        pipe = apply_tome(tiny.pipeline(), **self.REUSE)
        numbers = []
        for set_mode in (pipe.unet.eval, pipe.unet.train):
            set_mode()
            with count_matchings(pipe.unet) as counts:
                tiny.run_pipeline(pipe, steps=6)
            numbers.append(sum(counts))
        assert numbers[0] == numbers[1] > 0

    def test_another_prompt_gets_its_own(self) -> None:
        pipe = apply_tome(tiny.pipeline(), **self.REUSE)
        other = dict(steps=6, guidance_scale=2.0)
        expected = tiny.run_pipeline(pipe, **other)
        tiny.run_pipeline(pipe, steps=6)
        assert np.array_equal(tiny.run_pipeline(pipe, **other), expected)

    @pytest.mark.parametrize("scheduler", ["DDIM", "PNDM", "HeunDiscrete", "EulerDiscrete"])
    def test_called_again_gives_the_same_image(self, scheduler: str) -> None:
        pipe = tiny.pipeline(scheduler=getattr(ppdiffusers, f"{scheduler}Scheduler")())
        first, second = (tiny.run_pipeline(made, steps=6) for made in [pipe.apply_tome(**self.REUSE)] * 2)
        assert np.isfinite(first).all()
        assert np.array_equal(first, second)
        assert not np.array_equal(tiny.run_pipeline(pipe.apply_tome(0.5), steps=6), first)
