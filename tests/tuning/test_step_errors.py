"""The choice of computed steps by what skipping steps costs in a model."""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import ToMeValueError
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.state.step_memory import SLOPE
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.results import MeasuredImage
from ppdiffusers_tome.tuning.step_errors import StepErrors, choose_steps, count_images, measure_step_errors

STEPS = 10


def random_errors(seed: int, steps: int = STEPS) -> StepErrors:
    """Errors of values that wander, in a model with two layers."""
    random = np.random.default_rng(seed)
    values = [random.standard_normal((steps, 6)).cumsum(axis=0) for _ in range(2)]
    return StepErrors(np.stack([each @ each.T for each in values]), random.uniform(1e-6, 1e-3, steps))


def predict(values: np.ndarray, first: int | None, last: int, step: int) -> np.ndarray:
    change = 0 if first is None else (values[last] - values[first]) / (last - first)
    return values[last] + SLOPE * (step - last) * change


class TestErrors:
    def test_an_error_is_that_of_the_prediction(self):
        values = np.random.default_rng(0).standard_normal((STEPS, 7))
        errors = StepErrors((values @ values.T)[None], np.ones(STEPS))
        for first, last, step in ((2, 4, 7), (None, 0, 3), (0, 1, 2)):
            expected = np.sum((values[step] - predict(values, first, last, step)) ** 2)
            assert errors.compute_error(first, last, step) == pytest.approx(expected)


class TestChoice:
    @pytest.mark.parametrize("count", [3, 5, 8])
    def test_no_other_list_has_a_smaller_expected_error(self, count):
        errors = [random_errors(seed) for seed in (0, 1)]
        chosen = choose_steps(errors, count)
        assert len(chosen) == count
        lists = [(0, *steps, STEPS - 1) for steps in combinations(range(1, STEPS - 1), count - 2)]
        assert compute_total(errors, chosen) == pytest.approx(min(compute_total(errors, steps) for steps in lists))

    def test_few_steps_of_many_are_far_apart(self):
        """Further than the gaps that are tried where there are more."""
        chosen = choose_steps([random_errors(0, steps=60)], 3)
        assert (len(chosen), chosen[0], chosen[-1]) == (3, 0, 59)

    def test_steps_in_which_values_change_are_computed(self):
        values = np.zeros((STEPS, 2))
        values[4:, 0], values[7:, 1] = 1, 5
        errors = StepErrors((values @ values.T)[None], np.where(np.isin(np.arange(STEPS), (4, 7)), 1e-2, 1e-9))
        assert {0, 4, 7} <= set(choose_steps([errors], 5))


def compute_total(errors: list[StepErrors], steps: tuple[int, ...]) -> float:
    """Add up the expected errors of a list's skipped steps."""
    gaps = zip((None, *steps), steps, steps[1:], strict=False)
    skipped = [(first, last, step) for first, last, end in gaps for step in range(last + 1, end)]
    return sum(np.mean([each.compute_cost(*places) for each in errors]) for places in skipped)


def measure(pipe: Any, **call: Any) -> StepErrors:
    def generate() -> MeasuredImage:
        paddle.seed(0)
        return MeasuredImage(read_first_image(pipe(**call)), 1.0, None)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "ToMe:")  # the user gave no list
        return measure_step_errors(pipe, generate)


TEXTS = dict(prompt_embeds=tiny.text(1), negative_prompt_embeds=tiny.text(1) * 0, num_inference_steps=STEPS)
IMAGE = tiny.array((1, 3, 64, 64)).clip(0, 1)


def image_to_image() -> Any:
    return tiny.pipeline(ppdiffusers.StableDiffusionImg2ImgPipeline)


@pytest.mark.once
class TestMeasuring:
    @pytest.mark.parametrize(
        ("make", "call", "steps"),
        [
            (tiny.pipeline, dict(TEXTS, height=64, width=64), STEPS),
            (image_to_image, dict(TEXTS, num_inference_steps=15, image=IMAGE, strength=0.6), 9),
        ],
        ids=["text to image", "image to image"],
    )
    def test_every_step_has_its_values_and_the_pipeline_is_as_before(self, make, call, steps):
        pipe, runs = make(), []
        before = tiny.snapshot(pipe.unet)
        pipe.unet.register_forward_pre_hook(lambda *_: runs.append(1))
        errors = measure(pipe, **call)
        assert len(runs) == steps * count_images(steps)
        assert len(errors.damage) == steps
        assert errors.damage.min() > 0
        assert errors.products.shape[1:] == (steps, steps)
        assert not list_attached_blocks(pipe.unet)
        assert tiny.snapshot(pipe.unet) == before or pipe.tome is None
        assert len(choose_steps([errors], steps - 2)) == steps - 2

    def test_a_controlnet_has_values_too(self):
        alone = measure(tiny.pipeline(), **TEXTS, height=64, width=64)
        pipe = tiny.pipeline(ppdiffusers.StableDiffusionControlNetPipeline, controlnet=tiny.controlnet())
        both = measure(pipe, **TEXTS, image=IMAGE)
        assert len(both.products) > len(alone.products)

    def test_a_call_that_fails_leaves_no_settings(self):
        pipe = tiny.pipeline()

        def fail(step: int, *_: Any) -> None:
            raise RuntimeError("out of luck")

        with pytest.raises(RuntimeError, match="out of luck"):
            measure(pipe, **TEXTS, height=64, width=64, callback=fail, callback_steps=1)
        assert pipe.tome is None

    def test_a_pipeline_that_denoises_twice_is_refused_in_words(self):
        class Twice(ppdiffusers.StableDiffusionPipeline):
            def __call__(self, **call: Any) -> Any:
                super().__call__(**{**call, "num_inference_steps": STEPS - 2})
                return super().__call__(**call)

        with pytest.raises(ToMeValueError, match="does not run once for each step of one denoising"):
            measure(tiny.pipeline(Twice), **TEXTS, height=64, width=64)
