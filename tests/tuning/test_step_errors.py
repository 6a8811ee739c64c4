"""The choice of computed steps by what skipping steps costs in a model."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig, ToMeValueError
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.results import ChosenSteps, MeasuredImage
from ppdiffusers_tome.tuning.step_errors import StepErrors, choose_steps, count_images, measure_step_errors

STEPS = 10


def random_errors(seed: int, steps: int = STEPS) -> StepErrors:
    """Errors of values that wander, in a model with two layers."""
    random = np.random.default_rng(seed)
    values = [random.standard_normal((steps, 6)).cumsum(axis=0) for _ in range(2)]
    damage = random.uniform(1e-6, 1e-3, steps)
    damage[0] = 0
    return StepErrors(np.stack([each @ each.T for each in values]), damage)


def predict(values: np.ndarray, first: int | None, last: int, step: int, slope: float) -> np.ndarray:
    change = 0 if first is None else (values[last] - values[first]) / (last - first)
    return values[last] + slope * (step - last) * change


class TestErrors:
    def test_an_error_is_that_of_the_prediction(self):
        values = np.random.default_rng(0).standard_normal((STEPS, 7))
        errors = StepErrors((values @ values.T)[None], np.ones(STEPS))
        for first, last, step, slope in ((2, 4, 7, 0.6), (None, 0, 3, 1.0), (0, 1, 2, 0.0)):
            expected = np.sum((values[step] - predict(values, first, last, step, slope)) ** 2)
            assert errors.compute_error(first, last, step, slope) == pytest.approx(expected)

    def test_the_fitted_slope_is_that_of_least_squares(self):
        values = np.random.default_rng(1).standard_normal((STEPS, 7)) + np.arange(STEPS)[:, None]
        errors = StepErrors((values @ values.T)[None], np.ones(STEPS))
        chosen = choose_steps([errors], STEPS - 1)
        (skipped,) = set(range(STEPS)) - set(chosen.steps)
        slope = (values[skipped - 1] - values[skipped - 2])[:, None]
        expected = np.linalg.lstsq(slope, values[skipped] - values[skipped - 1], rcond=None)[0]
        assert chosen.slopes[skipped] == pytest.approx(float(np.clip(expected, 0, 1.5)[0]), abs=0.01)


class TestChoice:
    @pytest.mark.parametrize("count", [3, 5, 8])
    def test_no_other_list_has_a_smaller_expected_error(self, count):
        errors = [random_errors(seed) for seed in (0, 1)]
        chosen = choose_steps(errors, count)
        assert len(chosen.steps) == count
        expected = {
            steps: choose_steps_error(errors, (0, *steps)) for steps in combinations(range(1, STEPS), count - 1)
        }
        assert choose_steps_error(errors, chosen.steps) == pytest.approx(min(expected.values()))
        assert chosen.psnr == pytest.approx(-10 * np.log10(min(expected.values())))

    def test_steps_in_which_values_change_are_computed(self):
        values = np.zeros((STEPS, 2))
        values[4:, 0], values[7:, 1] = 1, 5
        errors = StepErrors((values @ values.T)[None], np.where(np.isin(np.arange(STEPS), (4, 7)), 1e-2, 1e-9))
        assert {0, 4, 7} <= set(choose_steps([errors], 5).steps)

    def test_a_slope_that_was_given_stays(self):
        chosen = ChosenSteps((0, 1, 3), (0.0, 0.0, 0.5, 0.0), 41.5)
        assert chosen.apply_to(ToMeConfig(0, cache=0.25), None).cache_slope == chosen.slopes
        assert chosen.apply_to(ToMeConfig(0, cache=0.25, cache_slope=0.25), None).cache_slope == 0.25

    def test_settings_with_them_can_be_saved(self, tmp_path):
        config = choose_steps([random_errors(0)], 4).apply_to(ToMeConfig.preset("balanced"), "DDIMScheduler")
        config.save(tmp_path / "tome.json")
        assert ToMeConfig.load(tmp_path / "tome.json") == config
        assert (config.cache_steps, config.cache_scheduler, len(config.cache_slope)) == (STEPS, "DDIMScheduler", STEPS)
        assert config.without_cache == ToMeConfig.preset("balanced")


def choose_steps_error(errors: list[StepErrors], steps: tuple[int, ...]) -> float:
    """The expected error of a list, each skipped step with the best share of the slope for all images."""
    total = 0.0
    for first, last, end in zip((None, *steps), steps, (*steps[1:], STEPS), strict=False):
        for step in range(last + 1, end):
            slope = 0.0
            if first is not None:
                above, below = np.sum([each.compute_fit(first, last, step) for each in errors], axis=0)
                slope = float(np.clip(above / below, 0, 1.5))
            ratios = [each.compute_error(first, last, step, slope) / each.compute_baseline(step) for each in errors]
            total += np.mean([each.damage[step] * ratio.mean() for each, ratio in zip(errors, ratios, strict=True)])
    return total


def measure(pipe: Any, **call: Any) -> StepErrors:
    def generate() -> MeasuredImage:
        paddle.seed(0)
        return MeasuredImage(read_first_image(pipe(**call)), 1.0, None)

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
        assert errors.damage[0] == 0
        assert errors.damage[1:].min() > 0
        assert errors.products.shape[1:] == (steps, steps)
        assert not list_attached_blocks(pipe.unet)
        assert tiny.snapshot(pipe.unet) == before or pipe.tome is None
        assert len(choose_steps([errors], steps - 2).steps) == steps - 2

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
