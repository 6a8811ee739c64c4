"""The cache over steps: which steps are computed, what the others predict, and that nothing reaches another image."""

import copy
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paddle.nn import Layer

import tiny
from pipelines.whole import sag_fails_on_paddle_2
from ppdiffusers_tome import ToMeConfig, apply_tome, remove_tome, shared_copy
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState, StepReport
from ppdiffusers_tome.patching.state.pipeline_call import Denoising
from ppdiffusers_tome.patching.state.shared_values import CallIdentity
from ppdiffusers_tome.patching.step_cache.cached_call import SLOPE, History
from ppdiffusers_tome.patching.step_cache.skipped_steps import predicts_noise
from ppdiffusers_tome.settings.step_schedule import (
    CLASS_TRANSFORMER,
    FAMILIES,
    HIGHEST_SHARE,
    MIN_STEPS,
    TEXT_TRANSFORMER,
    UNET,
    choose_computed_steps,
)

STEPS, CACHE = 12, 0.4
COMPUTED = (0, 1, 2, 4, 7, 10, 11)  # of a UNet that predicts noise


def call(unet: Layer, number: int, timestep: float) -> np.ndarray:
    return tiny.run_unet(unet, timestep=timestep)


@paddle.enable_grad()
def call_with_gradients(unet: Layer, number: int, timestep: float) -> np.ndarray:
    return unet(tiny.latent(), timestep, tiny.text()).sample.numpy()


def build(scheduler: Any = None) -> Any:
    return tiny.Sampler(tiny.unet(), scheduler or tiny.scheduler())


def build_cached() -> Any:
    return apply_tome(build(), ratio=0, cache=CACHE)


def report_of(pipe: Any) -> StepReport:
    return pipe.tome.entries[0].last_image


def equal_steps(one: list[np.ndarray], another: list[np.ndarray]) -> list[int]:
    return [number for number, pair in enumerate(zip(one, another, strict=True)) if np.array_equal(*pair)]


def list_computed_steps(pipe: Any, *arguments: Any, cache: float = CACHE, **keywords: Any) -> list[int]:
    """Call a pipeline without and with a cache, and list the steps in which that changes nothing."""
    plain = pipe(*arguments, **keywords)
    return equal_steps(plain, apply_tome(pipe, ratio=0, cache=cache)(*arguments, **keywords))


def count_attentions(unet: Layer) -> list[int]:
    runs: list[int] = []
    block = next(layer for layer in unet.sublayers() if type(layer).__name__ == "BasicTransformerBlock")
    block.attn1.register_forward_pre_hook(lambda *_: runs.append(1))
    return runs


class TestSchedule:
    @given(st.integers(1, 120), st.floats(0, 0.99), st.sampled_from(FAMILIES), st.booleans())
    @example(MIN_STEPS - 1, 0.5, UNET, False)
    @settings(max_examples=200)
    def test_the_share_is_of_any_number(self, num_steps: int, share: float, family: str, predicts_noise: bool) -> None:
        """Few steps are all computed."""
        computed = choose_computed_steps(num_steps, share, family, predicts_noise=predicts_noise)
        assert {0, num_steps - 1} <= computed <= set(range(num_steps))
        skipped = round(share * num_steps) if num_steps >= MIN_STEPS else 0
        assert len(computed) == max(min(4, num_steps), num_steps - skipped)

    @given(st.integers(MIN_STEPS, 120), st.floats(0.01, HIGHEST_SHARE), st.sampled_from(FAMILIES))
    @settings(max_examples=200)
    def test_a_mild_share_skips_single_late_steps(self, num_steps: int, share: float, family: str) -> None:
        """Errors of early steps change what the image shows, and those of neighbours amplify one another."""
        computed = choose_computed_steps(num_steps, share, family, predicts_noise=True)
        skipped = sorted(set(range(num_steps)) - computed)
        assert all(step >= num_steps / 3 for step in skipped)
        assert all(later - earlier == 2 for earlier, later in pairwise(skipped))

    @pytest.mark.parametrize(
        ("num_steps", "share", "skipped"),
        [
            (20, 0.2, range(12, 20, 2)), (20, 0.3, range(8, 20, 2)),
            (28, 0.2, range(16, 28, 2)), (50, 0.2, range(28, 48, 2)),
        ],
    )  # fmt: skip
    def test_a_class_conditional_transformer_that_predicts_noise_skips_until_late(
        self, num_steps: int, share: float, skipped: range
    ) -> None:
        computed = choose_computed_steps(num_steps, share, CLASS_TRANSFORMER, predicts_noise=True)
        assert set(range(num_steps)) - computed == set(skipped)

    @pytest.mark.parametrize(
        ("share", "family", "errors", "highest"),
        [
            (0.5, CLASS_TRANSFORMER, "DiT-XL/2", 0.012), (0.5, TEXT_TRANSFORMER, "FLUX.1-dev", 1.3),
            (0.5, TEXT_TRANSFORMER, "Wan2.1", 0.02), (0.2, CLASS_TRANSFORMER, "DiT-XL/2", 0.01),
            (0.2, TEXT_TRANSFORMER, "FLUX.1-dev", 0.5), (0.2, TEXT_TRANSFORMER, "Wan2.1", 0.001),
        ],
    )  # fmt: skip
    def test_skipped_steps_cost_little(self, share: float, family: str, errors: str, highest: float) -> None:
        """The sum over skipped steps of 1 - cosine to the last computed one, as measured for arXiv 2512.23258."""
        rows = json.loads((Path(__file__).parent / "real_model_errors.json").read_text())["errors"][errors]
        predicts_noise = family == CLASS_TRANSFORMER  # FLUX and Wan predict a velocity
        steps = sorted(choose_computed_steps(50, share, family, predicts_noise=predicts_noise))
        gaps = [(step - last, step) for last, end in pairwise([*steps, 50]) for step in range(last + 1, end)]
        assert sum(rows[gap - 1][step] for gap, step in gaps) <= highest


@pytest.mark.parametrize("has_slope", [False, True])
def test_a_share_of_the_slope_is_followed(has_slope: bool) -> None:
    """That of steps of different times: schedulers of second order call a model twice at one time."""
    history = History()
    for step in (0, 1, 4, 4):
        history = history.add(step if has_slope else None, (paddle.full([2], 3.0 * step), None))
    for step in (4, 6):
        value, nothing = history.predict(step)
        assert nothing is None
        assert value.tolist() == [12.0 + 3.0 * (step - 4) * SLOPE * has_slope] * 2


def test_the_memory_of_the_cache_counts_each_tensor_once() -> None:
    state, x = DenoiserState(ToMeConfig(0, cache=0.2)), paddle.zeros([2])
    denoising = Denoising(SimpleNamespace(scheduler=tiny.scheduler()), "", state)
    step = denoising.enter_step(999.0)
    denoising.share_values(step, CallIdentity()).histories.update(one=History(value=x), other=History(value=(x, [x])))
    denoising.end(is_complete=False)
    assert state.last_image.cache_bytes == 8


class TestSteps:
    def test_computed_steps_equal_the_model_and_skipped_ones_run_no_block(self) -> None:
        pipe = build()
        plain = pipe(call)
        apply_tome(pipe, ratio=0, cache=CACHE)
        runs = count_attentions(pipe.unet)
        cached, report = pipe(call), report_of(pipe)
        assert equal_steps(plain, cached) == list(COMPUTED)
        assert (len(runs), report.num_computed, report.num_skipped) == (7, 7, 5)
        assert report.cache_bytes > 0
        assert equal_steps(cached, pipe(call)) == list(range(STEPS))  # nothing of the first image reaches the second
        remove_tome(pipe)
        assert equal_steps(plain, pipe(call)) == list(range(STEPS))

    def test_image_to_image_has_its_own_ends(self) -> None:
        pipe, expected = build(), sorted(choose_computed_steps(12, CACHE, predicts_noise=True))
        assert list_computed_steps(pipe, call, 24, begin=12) == expected
        assert report_of(pipe).computed_steps == tuple(12 + step for step in expected)

    @pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
    def test_steps_depend_on_what_the_scheduler_takes_the_output_for(self, prediction: str) -> None:
        pipe = build(ppdiffusers.DDIMScheduler(prediction_type=prediction))
        expected = choose_computed_steps(20, 0.2, predicts_noise=prediction == "epsilon")
        assert list_computed_steps(pipe, call, 20, cache=0.2) == sorted(expected)

    @pytest.mark.parametrize(
        ("name", "family", "is_noise"),
        [
            ("PNDMScheduler", UNET, True), ("IPNDMScheduler", UNET, True), ("RePaintScheduler", UNET, True),
            ("EDMEulerScheduler", UNET, False), ("FlowMatchEulerDiscreteScheduler", TEXT_TRANSFORMER, False),
        ],
    )  # fmt: skip
    def test_schedulers_that_do_not_say_it_or_mean_something_else(self, name: str, family: str, is_noise: bool) -> None:
        assert predicts_noise(getattr(ppdiffusers, name)(), family) == is_noise

    def test_scheduler_of_second_order_counts_its_calls(self) -> None:
        expected = sorted(choose_computed_steps(19, CACHE, predicts_noise=True))
        assert list_computed_steps(build(ppdiffusers.HeunDiscreteScheduler()), call, 10) == expected

    def test_two_calls_a_step_have_their_own_histories(self) -> None:
        prompts = [tiny.text(2), tiny.array((2, 5, 12), seed=9)]

        @paddle.no_grad()
        def call_with(prompt: int) -> Any:
            return lambda unet, _, timestep: unet(tiny.latent(), timestep, prompts[prompt]).sample.numpy()

        pipe = build_cached()
        alone = [pipe(call_with(prompt)) for prompt in (0, 1)]
        both = pipe(lambda *arguments: np.stack([call_with(prompt)(*arguments) for prompt in (0, 1)]))
        assert equal_steps([np.stack(pair) for pair in zip(*alone, strict=True)], both) == list(range(STEPS))

    def test_a_call_with_gradients_in_each_step_leaves_the_other_one_its_history(self) -> None:
        """As in Attend-and-Excite."""
        pipe = build_cached()
        expected, alone = pipe(call), report_of(pipe)
        both = pipe(lambda *arguments: (call_with_gradients(*arguments), call(*arguments))[1])
        assert equal_steps(expected, both) == list(range(STEPS))
        report = report_of(pipe)
        assert (report.num_computed, report.num_skipped) == (STEPS + alone.num_computed, alone.num_skipped)
        assert report.cache_bytes == alone.cache_bytes

    def test_an_image_of_another_pipeline_in_between_changes_nothing(self) -> None:
        pipe = build_cached()
        expected = pipe(call)

        def call_with_interruption(unet: Layer, number: int, timestep: float) -> np.ndarray:
            if number == 6:
                tiny.Sampler(unet, tiny.scheduler())(call, 9)
            return call(unet, number, timestep)

        assert equal_steps(expected, pipe(call_with_interruption)) == list(range(STEPS))

    def test_panorama_copies_its_scheduler_for_every_view_and_is_computed(self) -> None:
        pipe = tiny.pipeline(ppdiffusers.StableDiffusionPanoramaPipeline)
        arguments = dict(tiny.PROMPT_EMBEDS, latents=tiny.latent(1, 8, 80), height=64, width=640, output_type="latent",
                         view_batch_size=2, num_inference_steps=STEPS)  # fmt: skip
        plain = tiny.to_numpy(pipe(**arguments).images)
        assert np.array_equal(tiny.to_numpy(pipe.apply_tome(0, cache=0.5)(**arguments).images), plain)
        assert (report_of(pipe).num_computed, report_of(pipe).num_skipped) == (2 * STEPS, 0)
        assert report_of(pipe).computed_steps == tuple(range(STEPS))

    def test_the_end_of_a_list_that_the_pipeline_cuts_is_computed(self) -> None:
        class Cut(tiny.Sampler):
            def __call__(self, call: Any, steps: int) -> list[np.ndarray]:
                self._num_timesteps = steps - 4
                return super().__call__(lambda unet, n, t: call(unet, n, t) if n < steps - 4 else None, steps)[:-4]

        expected = sorted(choose_computed_steps(16, 0.5, predicts_noise=True))
        assert list_computed_steps(Cut(tiny.unet(), tiny.scheduler()), call, 20, cache=0.5) == expected

    def test_what_no_later_step_uses_is_not_kept(self) -> None:
        """Of computed steps that are followed by computed ones, and of the last."""

        def bytes_after(cache: float) -> int:
            pipe = apply_tome(build(), ratio=0, cache=cache)
            pipe(call)
            return report_of(pipe).cache_bytes

        assert bytes_after(0.1) == bytes_after(0.2) > bytes_after(0.01) == 0


class TestComputed:
    """What the cache cannot serve is computed, counted so, and warned of."""

    @pytest.mark.parametrize(
        ("calls", "times"),
        [(lambda *arguments: (call(*arguments), call(*arguments))[1], 2), (call_with_gradients, 1)],
        ids=["calls that cannot be told apart", "with gradients"],
    )
    def test_calls_that_share_nothing(self, calls: Any, times: int) -> None:
        pipe = build_cached()
        runs = count_attentions(pipe.unet)
        words = "this image shared nothing, so cache and reuse_steps have no effect.* record gradients.* be told apart"
        with pytest.warns(UserWarning, match=words):
            outputs = pipe(calls)
        assert len(runs) == report_of(pipe).num_computed == times * STEPS
        assert report_of(pipe).num_skipped == 0
        assert equal_steps(remove_tome(pipe)(calls), outputs) == list(range(STEPS))

    def test_a_pipeline_that_is_called_without_its_scheduler(self) -> None:
        def denoise(unet: Layer) -> list[np.ndarray]:
            return [call(unet, number, 900 - 50 * number) for number in range(STEPS)]

        pipe = apply_tome(tiny.Models(tiny.unet()), 0, cache=CACHE)
        with pytest.warns(UserWarning, match="known only in a call of a pipeline, .* its scheduler, so cache"):
            (outputs,) = pipe(denoise)
        assert equal_steps(*remove_tome(pipe)(denoise), outputs) == list(range(STEPS))

    def test_timesteps_on_no_list(self) -> None:
        pipe = build_cached()
        runs = count_attentions(pipe.unet)
        with pytest.warns(UserWarning, match="known only .* at timesteps on the list of its scheduler, so cache"):
            pipe(lambda unet, number, timestep: call(unet, number, timestep + 40 * (number > 3)))
        report = report_of(pipe)
        assert (report.num_computed, report.num_skipped) == (len(runs), STEPS - len(runs)) == (STEPS - 1, 1)

    def test_a_model_that_its_pipeline_left_in_training_mode_skips(self) -> None:
        """As AnimateDiff's, which the pipeline builds itself."""
        pipe = build_cached()
        pipe.unet.train()
        pipe(call)
        assert report_of(pipe).num_skipped == STEPS - len(COMPUTED)


class TestLayers:
    """Models that ignore their timestep, so that a skipped step predicts what a computed one returns."""

    def largest_error(self, model: Layer, run: Any) -> float:
        for layer in model.sublayers():
            if type(layer).__name__ == "TimestepEmbedding":
                for parameter in layer.linear_2.parameters():
                    parameter.set_value(paddle.zeros_like(parameter))
        pipe = apply_tome(tiny.Sampler(model, tiny.scheduler()), ratio=0, cache=CACHE)
        outputs = pipe(lambda model, _, timestep: run(model, timestep=timestep))
        assert report_of(pipe).num_skipped == STEPS - len(COMPUTED)
        return max(np.abs(output - outputs[0]).max() / np.abs(outputs[0]).max() for output in outputs)

    def test_tokens_may_change_in_place_between_blocks(self) -> None:
        """FLUX adds the residuals of its ControlNet so."""
        dit = tiny.dit(num_layers=3)

        def add(layer: Any, inputs: Any, tokens: paddle.Tensor) -> paddle.Tensor:
            tokens[:, :, ::2] = tokens[:, :, ::2] + 0.1
            return tokens

        for block in dit.transformer_blocks[:2]:
            block.register_forward_post_hook(add)
        assert self.largest_error(dit, tiny.run_dit) < 1e-5

    def test_the_output_of_a_coarse_level_may_change_in_place(self) -> None:
        """FreeU does so."""
        unet = tiny.unet()
        original = unet.up_blocks[-1].forward

        def forward(hidden_states: paddle.Tensor, *args: Any, **kwargs: Any) -> Any:
            hidden_states[:] = hidden_states * 1.2
            return original(hidden_states, *args, **kwargs)

        unet.up_blocks[-1].forward = forward
        assert self.largest_error(unet, tiny.run_unet) < 1e-5


class TestOnPipelines:
    @pytest.mark.parametrize("count", [1, 2])
    def test_controlnets_skip_with_their_unet_and_are_one_report(self, count: int) -> None:
        controlnets = tiny.controlnet() if count == 1 else tiny.multi_controlnet()
        pipe = tiny.pipeline(ppdiffusers.StableDiffusionControlNetPipeline, controlnet=controlnets)
        image = tiny.array((1, 3, 32, 32))
        apply_tome(pipe, ratio=0, cache=0.4)
        tiny.run_pipeline(pipe, steps=STEPS, image=image if count == 1 else [image] * count)
        unet, of_controlnets = (entry.last_image for entry in pipe.tome.entries)
        assert of_controlnets.num_skipped == count * unet.num_skipped > 0

    @sag_fails_on_paddle_2
    def test_a_pipeline_that_reads_attention_maps_is_computed_with_a_warning(self) -> None:
        pipe = tiny.pipeline(ppdiffusers.StableDiffusionSAGPipeline)
        arguments = dict(steps=STEPS, sag_scale=0.75, guidance_scale=3.0)
        plain = tiny.run_pipeline(pipe, **arguments)
        apply_tome(pipe, ratio=0, cache=0.4)
        with pytest.warns(UserWarning, match="reads the attention maps of each step, so all steps are computed"):
            assert np.array_equal(tiny.run_pipeline(pipe, **arguments), plain)

    def test_copies_have_their_own(self) -> None:
        pipe = apply_tome(tiny.pipeline(), "balanced", cache=0.4)
        expected = tiny.run_pipeline(pipe, steps=STEPS)
        assert report_of(pipe).num_skipped == STEPS - len(choose_computed_steps(STEPS, 0.4))
        copied = copy.deepcopy(pipe.unet)
        assert copied.tome.config == pipe.tome.config
        shared = apply_tome(shared_copy(pipe), "balanced", cache=0.4)
        remove_tome(pipe)
        assert np.array_equal(tiny.run_pipeline(shared, steps=STEPS), expected)
        pipe.unet = copied
        assert np.array_equal(tiny.run_pipeline(pipe, steps=STEPS), expected)

    @pytest.mark.parametrize(
        ("cache", "steps", "words"),
        [
            (0.9, 8, "cache=0.9 leaves nothing to skip in .* of 8 steps, .*; a cache needs 9 steps or more"),
            (0.04, 10, "nothing to skip in a denoising of 10 steps, .*; give a greater fraction"),
        ],
        ids=["few steps", "small share"],
    )
    def test_what_leaves_nothing_to_skip_is_warned_of_with_its_remedy(self, cache: Any, steps: int, words: str) -> None:
        pipe = tiny.pipeline()
        plain = tiny.run_pipeline(pipe, steps=steps)
        apply_tome(pipe, ratio=0, cache=cache)
        with pytest.warns(UserWarning, match=words):
            assert np.array_equal(tiny.run_pipeline(pipe, steps=steps), plain)
        assert report_of(pipe).cache_bytes == 0

    def test_a_layer_that_runs_several_times_in_a_call_is_computed(self) -> None:
        dit = tiny.dit(num_layers=1)
        dit.transformer_blocks = paddle.nn.LayerList([dit.transformer_blocks[0]] * 3)
        computed = list_computed_steps(
            tiny.Sampler(dit, tiny.scheduler()), lambda model, _, timestep: tiny.run_dit(model, timestep=timestep)
        )
        assert computed == list(range(STEPS))
