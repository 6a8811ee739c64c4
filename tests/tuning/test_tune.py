"""Tuning: which settings are tried, which are chosen, and what is left behind."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome import (
    NothingToMergeError,
    Target,
    ToMeConfig,
    ToMeTypeError,
    ToMeValueError,
    Trial,
    Tuned,
    apply_tome,
    remove_tome,
    tune,
)
from ppdiffusers_tome.tuning import measurement, results
from ppdiffusers_tome.tuning.candidates import CANDIDATES, collect_common_settings, list_candidates
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.results import MeasuredImage, conclude, rank_trials
from ppdiffusers_tome.tuning.search import NUM_CHOOSING, Search
from ppdiffusers_tome.tuning.step_errors import count_images

PROMPT = dict(
    prompt_embeds=tiny.text(1), negative_prompt_embeds=tiny.text(1) * 0, height=64, width=64, num_inference_steps=2
)  # fmt: skip
MILD, STRONG = ToMeConfig(0.1), ToMeConfig(0.74)
MILD_KEYS, STRONG_KEYS = (ToMeConfig(ratio, method="keys") for ratio in (0.1, 0.74))
# A search without known steps, by one image, that nobody follows.
SEARCH: dict[str, Any] = dict(images=[({}, 0)], steps=None, on_begin=lambda *_: None, on_trial=lambda _: None)


def tune_with(*candidates: ToMeConfig, pipe: Any = None, call: dict[str, Any] | None = None, **given: Any) -> Tuned:
    return tune(pipe or tiny.pipeline(), call or PROMPT, candidates=candidates, **given)


@pytest.fixture
def any_speed_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found does not depend on the machine: every image takes a second, so all reach a speed-up of 1."""
    monkeypatch.setattr(results, "LEAST_SPEED_UP", 0.0)
    seconds = count()
    monkeypatch.setattr(measurement, "read_clock", lambda: next(seconds))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (dict(psnr=0), ToMeValueError, "psnr=0 must be a number of dB above 0, at most 100"),
        (dict(psnr=3000), ToMeValueError, "psnr=3000 must be a number of dB above 0, at most 100"),
        (dict(speedup=0.5), ToMeValueError, "speedup=0.5 must be a finite number, 1 or more"),
        (dict(memory="8GiB"), ToMeTypeError, "memory='8GiB' must be a finite number above 0; got str"),
    ],
)
def test_a_bad_target_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        Target(**given)


def test_a_target_without_requirements_is_a_psnr_of_30_db():
    assert Target() == Target(psnr=30)
    assert Target(speedup=2).psnr is None


def trial(speed_up: float, psnr: float, peak: int | None = None) -> Trial:
    return Trial("tome", ToMeConfig(), speed_up, psnr, peak)


TRIALS = (trial(1.2, 45.0, 900), trial(1.6, 35.0, 700), trial(2.0, 25.0, 500), trial(0.9, 50.0))


@pytest.mark.parametrize(
    ("target", "chosen"),
    [
        (Target(psnr=30), 1), (Target(psnr=20), 2), (Target(psnr=40), 0), (Target(psnr=60), None),
        (Target(speedup=1.5), 1), (Target(speedup=1.1), 0), (Target(speedup=3), None), (Target(memory=700), 1),
        (Target(memory=400), None), (Target(psnr=20, speedup=1.5), 2), (Target(psnr=30, memory=600), None),
        (Target(psnr=50), 3), (Target(psnr=50, memory=10**12), None),  # memory that was not measured meets no limit
    ],
)  # fmt: skip
def test_the_best_that_meets_the_target_is_the_fastest_for_a_psnr(target, chosen):
    assert rank_trials(TRIALS, target)[:1] == ([] if chosen is None else [TRIALS[chosen]])


def test_the_best_meets_the_target_beside_the_unmerged_images_too():
    trials = [replace(each, config=ToMeConfig(0.1 * number)) for number, each in enumerate(TRIALS)]
    beside = {trials[1].config: 1.2, trials[2].config: 1.9}  # the speed of a machine changes

    class Stub(Search):
        def try_settings(self, family, config, num_steps=None, *, beside_unmerged=False):
            (tried,) = (each for each in trials if each.config == config)
            return replace(tried, speed_up=beside[config])

    def repeat_best(target):
        return Stub(**SEARCH, pipe=None, generate=None, target=target, families={}).repeat_best(trials)

    assert repeat_best(Target(speedup=1.5)) == replace(trials[2], speed_up=1.9)  # the second, as the first fails
    assert repeat_best(Target(psnr=30, speedup=1.5)) is None


def test_memory_that_paddle_cannot_measure_is_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.delattr(paddle.base.core, "host_memory_stat_reset_peak_value", raising=False)  # as in Paddle 2.6
    drawn = []
    with pytest.raises(ToMeValueError, match=r"the target has memory, .* require a PSNR or a speed-up in its place"):
        tune(tiny.pipeline(), watched(drawn.append), memory=2**40)
    assert drawn == []
    assert measurement.Meter().peak_bytes() is None


@pytest.mark.once
class TestOnAPipeline:
    def test_a_family_is_left_when_it_misses_the_similarity(self):
        # No two images are this similar, so the first of each family is its last.
        found = tune_with(STRONG, MILD, STRONG_KEYS, MILD_KEYS, psnr=100)
        assert [(one.family, one.config) for one in found.trials] == [("tome", MILD), ("keys", MILD_KEYS)]
        assert (found.config, found.pays) == (ToMeConfig(ratio=0), False)
        assert found.verdict.startswith("No settings reach the target here. The fastest tried were ")

    def test_a_family_is_left_when_it_is_fast_enough(self, any_speed_pays):
        found = tune_with(ToMeConfig(0.05, st=2), MILD, STRONG, speedup=1)  # the first does not fit
        assert [one.config for one in found.trials if one.steps is None] == [MILD]
        assert (found.config, found.pays, found.steps) == (MILD, True, None)

    def test_similarity_is_measured_to_the_unmerged_image(self):
        nothing, mild, strong, *_ = tune_with(ToMeConfig(0), MILD, STRONG, psnr=1).trials
        assert math.inf == nothing.psnr > mild.psnr > strong.psnr > 1

    def test_without_a_target_it_is_a_psnr_of_30_db(self):
        found = tune_with(ToMeConfig(0), STRONG)
        assert [one.psnr >= 30 for one in found.trials[:2]] == [True, False]
        assert not found.pays or found.config == ToMeConfig(0)

    def test_a_cache_over_steps_has_steps_of_the_model_and_is_compared_with_fewer(self, any_speed_pays):
        begun: list[tuple[int, float]] = []
        found = tune_with(
            replace(MILD, cache=0.5), call={**PROMPT, "num_inference_steps": 12}, speedup=1,
            on_begin=lambda *given: begun.append(given),
        )  # fmt: skip
        cached, fewer = found.trials
        assert cached.config.without_cache == MILD
        assert (len(cached.config.cache), cached.config.cache[-1]) == (6, 11)
        assert (fewer.family, fewer.config, fewer.steps) == ("fewer steps", ToMeConfig(0), 11)
        assert found.pays
        assert "11 steps unmerged: 1.00x" in found.verdict
        num_images = 9 + NUM_CHOOSING * count_images(12)
        assert begun == [(num_images, num_images)]  # and seconds

    @pytest.mark.parametrize(("num_steps", "words"), [(1, "1 step"), (6, "6 steps")])
    def test_fewer_steps_are_returned_where_they_keep_more(self, num_steps, words):
        best = Trial("a", replace(MILD, cache=0.5), 2.0, 33.8, None)
        fewer = Trial("fewer steps", ToMeConfig(0), 2.1, 47.0, None, num_steps)

        def find(best: Trial, fewer: Trial) -> Tuned:
            return conclude(Target(psnr=30), [MeasuredImage(PIXELS, 1.0, 100)], [best], best, fewer)

        found = find(best, fewer)
        assert (found.config, found.steps, found.trials) == (ToMeConfig(0), num_steps, (best, fewer))
        assert found.verdict.startswith(f"The best is {words} unmerged: 2.10x the speed, side by side with the un")
        assert found.verdict.endswith("; ratio 0.1, cache 0.5: 2.00x with 33.8 dB")
        assert find(best, replace(fewer, psnr=33.7)).steps is None
        found = find(best, replace(fewer, speed_up=1.5))
        assert (found.config, found.steps) == (best.config, None)
        assert found.verdict.endswith(f"with a PSNR of 33.8 dB; {words} unmerged: 1.50x with 47.0 dB")
        found = find(*(replace(each, speed_up=each.speed_up / 2.1) for each in (best, fewer)))
        assert (found.pays, found.config, found.steps) == (False, ToMeConfig(0), None)
        assert f"Nothing that reaches the target is faster on this machine at this size. The best is {words} un" in (
            found.verdict
        )

    def test_what_was_found_can_be_applied(self, any_speed_pays):
        pipe = tiny.pipeline()
        found = tune(pipe, PROMPT, speedup=1)
        mildest = [configs[0] for configs in list_candidates({}, steps=2).values()]
        assert found.config in mildest or found.steps == 1
        assert pipe.apply_tome(found.config).tome.config == found.config
        plain = tiny.run_pipeline(remove_tome(pipe))
        nothing = tune(pipe, PROMPT, psnr=100)
        assert not nothing.pays
        assert np.array_equal(tiny.run_pipeline(pipe.apply_tome(nothing.config)), plain)

    def test_a_replaced_forward_is_refused_before_anything_is_generated(self):
        pipe, steps = tiny.pipeline(), []
        forward = pipe.unet.mid_block.forward
        pipe.unet.mid_block.forward = lambda *args, **kwargs: forward(*args, **kwargs)
        with pytest.raises(ToMeValueError, match="mid_block of UNet2DConditionModel has a replaced forward"):
            tune(pipe, watched(steps.append))
        assert not steps

    @pytest.mark.parametrize(
        ("given", "error", "words"),
        [
            (dict(call="a cat"), ToMeTypeError, r"call='a cat' must be the arguments .* in call=\{'prompt': 'a cat'\}"),
            (dict(speed=2), ToMeTypeError, "unknown setting 'speed'; the settings are ratio, max_downsample"),
            (dict(tile=1), ToMeValueError, "nothing to try: no settings are possible with tile=1; tile=1 must be at"),
            (dict(candidates=[]), ToMeValueError, "there is nothing to try: candidates has no settings"),
            (dict(candidates=["balanced"]), ToMeTypeError, "candidates: 'balanced' must be settings.*got str"),
            (dict(families={"a": [MILD]}), ToMeValueError, r"families is gone: give candidates=\[...\]"),
            (dict(config="quality", tile=16), ToMeValueError, "tile=16 has no effect with method=.todo."),
        ],
    )
    def test_bad_input_is_refused_before_anything_is_drawn(self, given, error, words):
        pipe, drawn = apply_tome(tiny.pipeline(), 0.3), []
        call = watched(drawn.append)
        before = tiny.snapshot(pipe.unet)
        with pytest.raises(error, match=words):
            tune(pipe, **{"call": call, **given})
        assert tiny.snapshot(pipe.unet) == before
        assert drawn == []


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)


class TestImages:
    @pytest.mark.parametrize("mode", ["RGB", "RGBA"])
    def test_an_image_and_a_list_of_images_are_read(self, mode):
        image = Image.fromarray(PIXELS).convert(mode)
        for images in (image, [image, Image.fromarray(PIXELS // 2)]):
            assert np.array_equal(read_first_image(SimpleNamespace(images=images)), PIXELS)

    def test_a_single_channel_is_grey(self):
        image = Image.fromarray(PIXELS[..., 0])
        assert np.array_equal(read_first_image(SimpleNamespace(images=[image])), PIXELS[..., :1].repeat(3, axis=2))

    @pytest.mark.parametrize(
        ("output", "words"),
        [
            (SimpleNamespace(images=tiny.latent(1, 4, 4)), r"a Tensor of shape \[1, 4, 4, 4\]"),
            (SimpleNamespace(images=np.zeros((1, 8, 8, 3))), r"a ndarray of shape \[1, 8, 8, 3\]"),
            (SimpleNamespace(images=[[Image.fromarray(PIXELS)] * 2]), "a list"),
            (SimpleNamespace(images=[]), "a list"),
            (SimpleNamespace(frames=[Image.fromarray(PIXELS)]), "a SimpleNamespace"),
            ((np.zeros((1, 8, 8, 3)),), "a ndarray"),
        ],
        ids=["tensor", "array", "video", "none", "frames", "tuple"],
    )
    def test_anything_else_is_refused_in_words(self, output, words):
        with pytest.raises(ToMeTypeError, match=f"this call returned {words}.*; let the call return images"):
            read_first_image(output)


def everything_held(pipe: Any) -> list[Any]:
    """All that the layers of a pipeline hold, their hooks in the order in which they run."""
    models = [model for model in (pipe.unet, pipe.text_encoder, pipe.vae, getattr(pipe, "controlnet", None)) if model]
    layers = [layer for model in models for layer in model.sublayers(include_self=True)]
    hooks = [list(items.items()) for layer in layers for items in (layer._forward_pre_hooks, layer._forward_post_hooks)]
    return [hooks, *map(tiny.snapshot, models)]


def user_hooks(pipe: Any) -> None:
    """Hooks of a user's before and after ToMe."""
    block = pipe.unet.down_blocks[0].attentions[0].transformer_blocks[0]
    block.register_forward_pre_hook(lambda layer, inputs: None)
    pipe.unet.apply_tome(0.3, tile=4)
    block.register_forward_pre_hook(lambda layer, inputs: None)
    block.attn1.register_forward_post_hook(lambda layer, inputs, output: None)


def watched(callback: Callable[[int], None]) -> dict[str, Any]:
    """A call that tells of every step."""
    return {**PROMPT, "callback": lambda step, timestep, latents: callback(step), "callback_steps": 1}


def failing(error: type[BaseException], at: int) -> dict[str, Any]:
    """A call whose denoising fails in image ``at``, from 0."""
    steps: list[int] = []

    def callback(step: int) -> None:
        steps.append(step)
        if steps.count(0) > at:
            raise error("out of luck")

    return watched(callback)


class TestWhatIsLeftBehind:
    """Whatever tuning did, and however it ended, the pipeline has the very ToMe that it had before."""

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            (lambda: dict(psnr=1), None),
            (lambda: dict(call=failing(RuntimeError, 2)), RuntimeError),
            (lambda: dict(call=failing(KeyboardInterrupt, 1)), KeyboardInterrupt),
            (lambda: dict(candidates=[ToMeConfig(0.5, st=2)]), NothingToMergeError),
        ],
        ids=["found", "while merged", "interrupt", "nothing to merge"],
    )
    def test_it_is_as_before(self, given, error):
        pipe = tiny.pipeline()
        user_hooks(pipe)
        tome, before, states = pipe.tome, everything_held(pipe), tiny.random_states()
        with contextlib.nullcontext() if error is None else pytest.raises(error):
            tune(pipe, **{"call": PROMPT, "candidates": [MILD, STRONG], "psnr": 1, **given()})
        assert everything_held(pipe) == before
        assert pipe.tome == tome
        assert tiny.random_states() == states

    def test_a_named_generator_starts_anew_for_every_image(self):
        """On a GPU a pipeline draws its noise from one, ``pipe(generator=name)``, whose state goes on."""
        states, seen = paddle.Generator().states_, []

        def callback(step: int) -> None:
            seen.append(states["mine"])
            states["mine"] += 1

        states["mine"] = 0
        try:
            tune_with(MILD, call=watched(callback), psnr=1)
            # Every image has the states 0 and 1, or 0 alone with fewer steps.
            assert seen[0] == 0
            assert set(seen) == {0, 1}
            assert all(before == 0 for before, state in pairwise(seen) if state == 1)
            assert len(seen) > 4
            assert states["mine"] == 0
        finally:
            del states["mine"]


def flat(found: dict[str, Any]) -> list[ToMeConfig]:
    return [config for configs in found.values() for config in configs]


GIVEN = [
    dict(method="todo"), dict(ratio=(0.5, 0.3)), dict(method="keys", tile=16, seed=3, max_downsample=2),
    dict(start=0.2, end=0.9), dict(end=np.float32(0.5), seed=paddle.to_tensor(3)),
]  # fmt: skip


class TestCandidates:
    """Whatever is given holds in all that is tried; what that makes impossible is not tried, and nothing twice."""

    def test_without_settings_every_family_goes_from_mild_to_strong(self):
        found = list_candidates({})
        assert {"todo", "keys", "tome", "cache over steps", "todo, cache over steps"} <= set(found)
        assert sorted(flat(found), key=repr) == sorted(CANDIDATES, key=repr)

    def test_few_steps_have_no_cache(self):
        assert not [config for config in flat(list_candidates({}, steps=8)) if config.cache]
        assert flat(list_candidates({}, steps=9)) == flat(list_candidates({}))

    @pytest.mark.parametrize("given", GIVEN, ids=str)
    def test_all_have_what_is_given(self, given):
        found = list_candidates(given)
        expected = ToMeConfig(**{"ratio": 0, **given})
        for config in flat(found):
            assert [getattr(config, name) for name in given] == [getattr(expected, name) for name in given]
        assert len(set(flat(found))) == len(flat(found))
        # Nothing that is possible is missing.
        for config in CANDIDATES:
            with contextlib.suppress(ToMeValueError):
                possible = replace(config, **given)
                assert possible in flat(found)
        for configs in found.values():
            strengths = [(config.highest_ratio, config.cache) for config in configs]
            assert strengths == sorted(strengths)

    @pytest.mark.parametrize(
        ("base", "given"), [("quality", {}), (ToMeConfig(0.4, tile=8, reuse_steps=2), dict(use_rand=False))], ids=str
    )
    def test_of_a_config_only_the_ratio_is_looked_for(self, base, given):
        config = replace(base if isinstance(base, ToMeConfig) else ToMeConfig.preset(base), **given)
        found = list_candidates(collect_common_settings(base, given))
        assert list(found) == [config.method]
        assert {replace(each, ratio=config.ratio) for each in flat(found)} == {config}
        assert len({each.ratio for each in flat(found)}) == len(flat(found)) >= 3

    def test_what_is_given_replaces_that_of_the_config(self):
        config = ToMeConfig(0.4, tile=8)
        found = list_candidates(collect_common_settings(config, dict(tile=None, method="keys", sx=4)))
        assert set(found) == {"keys"}
        assert {(each.tile, each.method, each.sx, each.sy) for each in flat(found)} == {(None, "keys", 4, 2)}
        assert "ratio" not in collect_common_settings("fast", dict(sx=2))
        assert collect_common_settings("fast", dict(ratio=0.5))["ratio"] == 0.5


@pytest.mark.parametrize("num_steps", [5, 10])
def test_trials_warn_of_no_settings_that_nobody_gave(num_steps):
    call = {**tiny.PROMPT, "num_inference_steps": num_steps, "height": 32, "width": 32}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ToMe")
        tune(tiny.pipeline(unet=tiny.small_unet()), call=call, psnr=20)
