"""Tuning: what is tried, what is chosen, and what is left behind."""

import contextlib
import math
import os
import re
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome import NothingToMergeError, Target, ToMeConfig, ToMeTypeError, ToMeValueError, Trial, Tuned, tune
from ppdiffusers_tome.compilation import comparison
from ppdiffusers_tome.compilation.api import compile_cpu
from ppdiffusers_tome.compilation.model import CompiledModel
from ppdiffusers_tome.settings.config import UNMERGED
from ppdiffusers_tome.tuning import measurement
from ppdiffusers_tome.tuning.api import read_images
from ppdiffusers_tome.tuning.measurement import Clock
from ppdiffusers_tome.tuning.results import CANDIDATES, conclude, list_candidates
from ppdiffusers_tome.tuning.similarity import compute_psnr
from ppdiffusers_tome.tuning.trials import ROUNDS, Run, try_candidates

CALL = dict(**tiny.PROMPT_EMBEDS, height=32, width=32, num_inference_steps=2)
MILD, STRONG = ToMeConfig(0.1), ToMeConfig(0.74)


def small_pipeline(cls: type = ppdiffusers.StableDiffusionPipeline) -> Any:
    return tiny.pipeline(cls, unet=tiny.small_unet())


def tune_with(*candidates: ToMeConfig, call: Any = CALL, on_trial: Any = None, **given: Any) -> Tuned:
    return tune(small_pipeline(), call, candidates=candidates, on_trial=on_trial, **given)


def test_a_target_without_requirements_is_a_psnr_of_30_db():
    assert Target() == Target(psnr=30)
    assert Target(speedup=2).psnr is None


UNMERGED_TRIAL = Trial(UNMERGED, 2.0, 1.0, math.inf)
SPEEDS = {1.2: 45.0, 1.6: 35.0, 2.0: 25.0, 0.9: 50.0}
TRIALS = [Trial(ToMeConfig(0.1 * number), 2 / speed, speed, SPEEDS[speed]) for number, speed in enumerate(SPEEDS, 1)]


def conclude_trials(target: Target, trials: list[Trial] = TRIALS, scheduler: str = "DDIMScheduler") -> Tuned:
    return conclude([UNMERGED_TRIAL, *trials], target, getattr(ppdiffusers, scheduler)())


@pytest.mark.parametrize(("target", "chosen"), [
    (Target(psnr=30), 1), (Target(psnr=20), 2), (Target(psnr=40), 0), (Target(speedup=1.5), 1),
    (Target(speedup=1.1), 0), (Target(psnr=20, speedup=1.5), 2),
])  # fmt: skip
def test_the_best_that_meets_the_target_is_the_fastest_for_a_psnr(target, chosen):
    found = conclude_trials(target)
    assert found.best == TRIALS[chosen]
    assert found.config == TRIALS[chosen].config
    assert found.verdict == f"The best is {TRIALS[chosen]}"


@pytest.mark.parametrize(("target", "nearest"), [
    (Target(psnr=50), 0), (Target(speedup=3), 2), (Target(psnr=40, speedup=1.5), 1), (Target(psnr=45, speedup=2), 1)
])  # fmt: skip
def test_where_nothing_meets_the_target_the_nearest_is_named_with_what_would_help(target, nearest):
    found = conclude_trials(target)
    assert (found.best, found.config) == (None, ToMeConfig(0))
    assert found.verdict == (
        f"Nothing faster reaches the target. The nearest is {TRIALS[nearest]}; give a lower target, or other settings"
    )
    for scheduler in ("PNDMScheduler", "LMSDiscreteScheduler"):
        verdict = conclude_trials(target, scheduler=scheduler).verdict
        assert f"; {scheduler} goes on with the noise of earlier steps, " in verdict
        assert "images keep more with pipe.scheduler = DDIMScheduler" in verdict


def test_where_nothing_is_faster_that_is_said():
    found = conclude_trials(Target(), TRIALS[3:])
    assert found.best is None
    assert found.verdict == "Nothing that was tried is faster on this machine at this size; larger images save more"


class TestCandidates:
    def test_they_are_the_presets_a_ratio_and_fractions_of_the_cache(self):
        for steps in ([None], [9, 20]):
            assert list_candidates(None, steps) == list(CANDIDATES)
        assert {ToMeConfig(), *map(ToMeConfig.preset, ("quality", "balanced"))} < {*CANDIDATES}
        assert sum(config.cache > 0 for config in CANDIDATES) == 4

    def test_as_many_calls_are_promised_as_are_made(self):
        def count(steps: int) -> int:
            return (1 + ROUNDS) * (1 + len(list_candidates(None, [steps])))

        assert f"{count(20)} times with the usual {len(CANDIDATES)} candidates" in (tune.__doc__ or "")
        page = (tiny.ROOT / "docs/en/guides/settings.md").read_text()
        assert f"up to {count(20)} calls" in page

    def test_few_steps_have_no_cache_and_given_ones_are_tried_once_in_their_order(self):
        without_cache = [config for config in CANDIDATES if not config.cache]
        assert list_candidates(None, [20, 8]) == without_cache
        assert list_candidates(iter([STRONG, MILD, STRONG]), [2]) == [STRONG, MILD]


@pytest.mark.once
class TestOnAPipeline:
    def test_trials_come_one_by_one_beside_the_unmerged_call(self, capsys):
        told: list[Trial] = []
        found = tune_with(ToMeConfig(0), MILD, STRONG, ToMeConfig(0.5, st=2), psnr=1, on_trial=told.append)
        settings = [ToMeConfig(0), MILD, STRONG]  # unmerged first, and once; the last does not fit
        assert [trial.config for trial in told] == settings * ROUNDS
        assert told[-len(settings) :] == [found.unmerged, *found.trials]
        same, mild, strong = (trial.psnr for trial in (found.unmerged, *found.trials))
        assert math.inf == same > mild > strong > 1
        assert found.unmerged.speedup == 1
        assert not capsys.readouterr().out

    def test_the_least_similar_image_of_all_calls_counts(self):
        def draw(pipe: Any, call: dict[str, Any]) -> list[np.ndarray]:
            paddle.seed(0)
            return read_images(pipe(**call))

        calls = [{**CALL, "num_images_per_prompt": 2}, {**CALL, "guidance_scale": 1.0}]
        plain, merged = small_pipeline(), small_pipeline().apply_tome(STRONG)
        expected = [list(map(compute_psnr, draw(plain, call), draw(merged, call))) for call in calls]
        assert [len(psnrs) for psnrs in expected] == [2, 1]
        for each, least in ((calls, min(map(min, expected))), (calls[0], min(expected[0]))):
            assert tune_with(STRONG, call=each).trials[0].psnr == least
        assert min(expected[0]) < max(expected[0])

    def test_a_cache_is_a_candidate_like_others(self):
        (trial,) = tune_with(ToMeConfig(0, cache=0.5), call={**CALL, "num_inference_steps": 9}).trials
        assert math.isfinite(trial.psnr)

    @pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
    def test_compiling_is_not_timed_at_any_size(self, tmp_path, monkeypatch):
        pytest.importorskip("openvino")
        make_program, made = CompiledModel._make_program, []

        class CountingClock(Clock):
            """Counts the programs that are made meanwhile."""

            def read_seconds(self) -> float:
                return 1 + len(made) - self.before

            def __init__(self) -> None:
                super().__init__()
                self.before = len(made)

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(CompiledModel, "_make_program", lambda *given: made.append(1) or make_program(*given))
        monkeypatch.setattr("ppdiffusers_tome.tuning.api.Clock", CountingClock)
        pipe = small_pipeline()
        compile_cpu(pipe, "float32")
        cached = ToMeConfig(0, cache=0.2)
        calls = [{**CALL, "num_inference_steps": 9}, {**CALL, "num_inference_steps": 9, "height": 64}]
        found = tune(pipe, calls, candidates=[MILD, cached], on_trial=None)
        assert len(made) >= 6
        assert [trial.seconds for trial in (found.unmerged, *found.trials)] == [2.0] * 3

    @pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
    def test_it_is_said_where_paddle_computes_in_place_of_a_program(self, tmp_path, monkeypatch):
        pytest.importorskip("openvino")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setitem(comparison.BOUNDS, "float32", -1.0)
        pipe = compile_cpu(small_pipeline(), "float32")
        with pytest.warns(UserWarning, match="UNet2DConditionModel is computed by Paddle, not by a compiled program"):
            tune(pipe, CALL, candidates=[MILD], on_trial=None)

    def test_without_candidates_the_usual_ones_are_tried_without_a_warning_and_printed(self, capsys):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="ToMe")
            found = tune(small_pipeline(), CALL)
        usual = list_candidates(None, [2])
        assert [trial.config for trial in found.trials] == usual
        trials = "".join(rf"{re.escape(config.summary)}: .* dB.*\n" for config in usual)
        printed = rf"(unmerged: .* s, 1\.00x the speed, identical.*\n{trials}){{3}}"
        assert re.fullmatch(printed, capsys.readouterr().out)

    def test_a_replaced_forward_is_refused_before_anything_is_generated(self):
        pipe, steps = tiny.pipeline(), []
        forward = pipe.unet.mid_block.forward
        pipe.unet.mid_block.forward = lambda *args, **kwargs: forward(*args, **kwargs)
        with pytest.raises(ToMeValueError, match="mid_block of UNet2DConditionModel has a replaced forward"):
            tune(pipe, report_steps(steps.append))
        assert not steps

    @pytest.mark.parametrize(
        ("arguments", "error", "words"),
        [
            (dict(call="a cat"), ToMeTypeError, r"call='a cat' must be the arguments .* in call=\{'prompt': 'a cat'\}"),
            (dict(call=[]), ToMeTypeError, r"call=\[\] must be the arguments"),
            (dict(candidates=[]), ToMeValueError, "there is nothing to try: candidates has no settings"),
            (dict(candidates=MILD), ToMeTypeError, "candidates: ToMeConfig.* must be settings"),
            (dict(candidates=["balanced"]), ToMeTypeError, "candidates: 'balanced' must be settings.*got str"),
            (dict(psnr=0), ToMeValueError, "psnr=0 must be a number of dB above 0, at most 100"),
            (dict(psnr=3000), ToMeValueError, "psnr=3000 must be a number of dB above 0, at most 100"),
            (dict(speedup=0.5), ToMeValueError, "speedup=0.5 must be a finite number, 1 or more"),
            (dict(speedup="fast"), ToMeTypeError, "speedup='fast' must be a finite number, 1 or more; got str"),
            (dict(added=dict(guidance_scal=3)), ToMeTypeError, "does not take; did you mean guidance_scale"),
            (dict(added=dict(steps=3)), ToMeTypeError, "call has 'steps', which StableDiffusionPipeline does not take"),
            (dict(added=dict(output_type="latent")), ToMeTypeError, "PIL images, .* output_type='latent'"),
            (dict(added=dict(num_inference_steps="20")), ToMeTypeError, "steps='20' must be a whole number, 1 or more"),
            (dict(added=dict(num_inference_steps=0)), ToMeValueError, "steps=0 must be a whole number, 1 or more"),
        ],
    )
    def test_bad_input_is_refused_before_anything_is_drawn(self, arguments, error, words):
        pipe, drawn = small_pipeline().apply_tome(0.3), []
        call = report_steps(drawn.append) | arguments.pop("added", {})
        before = tiny.snapshot(pipe.unet)
        with pytest.raises(error, match=words):
            tune(pipe, **{"call": call, **arguments})
        assert tiny.snapshot(pipe.unet) == before
        assert drawn == []

    def test_a_pipeline_that_hands_its_arguments_on_takes_those_of_its_parent(self):
        class Own(ppdiffusers.StableDiffusionPipeline):
            def __call__(self, **call: Any) -> Any:
                return super().__call__(**call)

        pipe = small_pipeline(Own)
        assert len(tune(pipe, CALL, candidates=[MILD]).trials) == 1
        with pytest.raises(ToMeTypeError, match="call has 'promt', which Own does not take; did you mean prompt"):
            tune(pipe, {"promt": "a cat"})
        with pytest.raises(ToMeTypeError, match="give that of this UNet2DConditionModel"):
            tune(pipe.unet, CALL)

    def test_a_function_in_the_place_of_the_pipelines_takes_what_it_takes(self, monkeypatch):
        cls = ppdiffusers.StableDiffusionPipeline
        call = cls.__call__
        monkeypatch.setattr(cls, "__call__", lambda self, *given, **named: call(self, *given, **named))
        assert len(tune_with(MILD).trials) == 1


class TestTurns:
    """Calls that take what the machine does to them."""

    def take_turns(self, seconds: list[float], config: ToMeConfig = MILD) -> list[Trial]:
        runs = (Run(each, [np.zeros((2, 2, 3), np.uint8)]) for each in seconds)
        return [*try_candidates(tiny.small_unet(), [config], lambda: next(runs), lambda config: None)]

    def test_where_nothing_merges_the_unmerged_calls_run_once(self):
        with pytest.raises(NothingToMergeError):
            self.take_turns([2.0], ToMeConfig(0.5, st=2))

    @pytest.mark.parametrize("seconds", [[5, 2, 2.8, 2, 2.8, 2], [2.8, 2, 90, 2.8, 80, 2, 2.8, 2]],
                             ids=["machine was busy", "programs were dropped, so a call runs again"])  # fmt: skip
    def test_a_slow_call_does_not_count(self, seconds):
        *_, unmerged, mild = self.take_turns(seconds)
        assert (unmerged.speedup, mild.speedup) == (1, 1.4)

    @pytest.mark.parametrize("told", [5, 6])  # 5: Ctrl-C in the last round
    def test_what_took_more_seconds_is_never_called_faster(self, told):
        trials = self.take_turns([0.95, 0.83, 0.71, 0.68, 0.70, 0.82])[:told]
        found = conclude({trial.config: trial for trial in trials}.values(), Target())
        assert found.unmerged.seconds < found.trials[0].seconds
        assert found.trials[0].speedup == found.unmerged.seconds / found.trials[0].seconds
        assert found.best is None
        for first, trial in zip(trials[::2], trials[1::2], strict=False):
            assert trial.speedup == first.seconds / trial.seconds

    @pytest.mark.parametrize(("busy", "waiting", "own_work", "is_disturbed"), [
        (1, 0, 0, True), (1, 0, 1.7, True), (1, 0, 1.9, False), (0.8, 0, 0, False), (0.8, 0.2, 0, False),
    ], ids=["by others", "others beside this one", "by this one", "most of the time", "or wait for disks"])  # fmt: skip
    def test_cores_that_other_programs_keep_busy_are_seen(
        self, busy, waiting, own_work, is_disturbed, tmp_path, monkeypatch
    ):
        """Of both cores that this process may use, in a second; a third one is idle."""

        def set_work(busy: float, idle: float, waiting: float, own_work: float) -> None:
            ticks = [round(seconds * os.sysconf("SC_CLK_TCK")) for seconds in (busy, idle, waiting)]
            used = "{} 0 0 {} {} 0 0 0 0 0".format(*ticks)
            unused = f"0 0 0 {sum(ticks)} 0 0 0 0 0 0"
            (tmp_path / "stat").write_text(f"cpu  {used}\ncpu0 {used}\ncpu1 {used}\ncpu2 {unused}\nctxt 5\n")
            monkeypatch.setattr(time, "process_time", lambda: own_work)

        monkeypatch.setattr(measurement, "_PROCESSORS", tmp_path / "stat")
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
        set_work(40, 50, 10, own_work=30)
        clock = Clock()
        set_work(40 + busy, 50 + 1 - busy - waiting, 10 + waiting, own_work=30 + own_work)
        assert clock.is_disturbed() == is_disturbed

    @pytest.mark.skipif(not measurement._PROCESSORS.exists(), reason="needs Linux")
    def test_what_this_process_computes_is_among_the_work_of_the_cores(self):
        before = measurement._read_work()
        while time.process_time() < before[1] + 0.5:
            pass
        busy, own, total = (now - then for now, then in zip(measurement._read_work(), before, strict=True))
        assert own >= 0.5
        assert 0.3 < busy <= total + 1e-6  # rounded

    def test_a_busy_machine_is_told(self):
        trial = Trial(MILD, 1.0, 2.0, 40.0, is_disturbed=True)
        assert str(trial).endswith(", while the machine was busy")
        assert "; the machine was busy meanwhile, so measure again" in conclude_trials(Target(), [trial]).verdict


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)


class TestImages:
    @pytest.mark.parametrize("mode", ["RGB", "RGBA"])
    def test_an_image_and_a_list_of_images_are_read(self, mode):
        image, darker = Image.fromarray(PIXELS).convert(mode), Image.fromarray(PIXELS // 2)
        assert np.array_equal(read_images(SimpleNamespace(images=image)), [PIXELS])
        for output in (SimpleNamespace(images=[image, darker]), ([image, darker], None)):
            assert np.array_equal(read_images(output), [PIXELS, PIXELS // 2])
        grey = SimpleNamespace(images=[Image.fromarray(PIXELS[..., 0])])
        assert np.array_equal(read_images(grey), [PIXELS[..., :1].repeat(3, axis=2)])

    @pytest.mark.parametrize(("output", "words"), [
        (SimpleNamespace(images=tiny.latent(1, 4, 4)), r"a Tensor of shape \[1, 4, 4, 4\]"),
        (SimpleNamespace(images=np.zeros((1, 8, 8, 3))), r"a ndarray of shape \[1, 8, 8, 3\]"),
        (SimpleNamespace(images=[[Image.fromarray(PIXELS)] * 2]), "a list"),
        (SimpleNamespace(images=[]), "a list"),
        (SimpleNamespace(frames=[Image.fromarray(PIXELS)]), "a SimpleNamespace"),
        ((np.zeros((1, 8, 8, 3)),), "a ndarray"),
    ], ids=["tensor", "array", "video", "none", "frames", "tuple"])  # fmt: skip
    def test_anything_else_is_refused_in_words(self, output, words):
        with pytest.raises(ToMeTypeError, match=f"this call returned {words}.*; choose settings by hand"):
            read_images(output)


def everything_held(pipe: Any) -> list[Any]:
    """All that the layers of a pipeline hold, their hooks in the order in which they run."""
    models = [pipe.unet, pipe.text_encoder, pipe.vae]
    layers = [layer for model in models for layer in model.sublayers(include_self=True)]
    hooks = [list(items.items()) for layer in layers for items in (layer._forward_pre_hooks, layer._forward_post_hooks)]
    return [hooks, *map(tiny.snapshot, models)]


def report_steps(callback: Callable[[int], None]) -> dict[str, Any]:
    """A call that tells of every step."""
    return {**CALL, "callback": lambda step, timestep, latents: callback(step), "callback_steps": 1}


def failing(error: type[BaseException], at: int) -> dict[str, Any]:
    """A call whose denoising fails in image ``at``, from 0."""
    steps: list[int] = []

    def callback(step: int) -> None:
        steps.append(step)
        if steps.count(0) > at:
            raise error("out of luck")

    return report_steps(callback)


class TestWhatIsLeftBehind:
    """Whatever tuning did, and however it ended, the pipeline has the very ToMe that it had before."""

    @pytest.mark.parametrize(
        ("make_arguments", "error"),
        [
            (lambda: dict(psnr=1), None),
            (lambda: dict(call=failing(RuntimeError, 2)), RuntimeError),
            (lambda: dict(call=failing(KeyboardInterrupt, 2)), KeyboardInterrupt),
            (lambda: dict(candidates=[ToMeConfig(0.5, st=2)]), NothingToMergeError),
            (lambda: dict(candidates=[ToMeConfig(0), ToMeConfig(0.5, st=2)]), NothingToMergeError),
        ],
        ids=["found", "while merged", "interrupt", "nothing to merge", "nor with what changes nothing"],
    )
    def test_it_is_as_before(self, make_arguments, error):
        pipe = small_pipeline()
        block = pipe.unet.down_blocks[0].attentions[0].transformer_blocks[0]
        block.register_forward_pre_hook(lambda layer, inputs: None)  # of the user, as those after it
        pipe.unet.apply_tome(0.3, tile=4)
        block.register_forward_pre_hook(lambda layer, inputs: None)
        block.attn1.register_forward_post_hook(lambda layer, inputs, output: None)
        tome, before, states = pipe.tome, everything_held(pipe), tiny.random_states()
        with contextlib.nullcontext() if error is None else pytest.raises(error):
            tune(pipe, **{"call": CALL, "candidates": [STRONG], "psnr": 1, **make_arguments()})
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
            tune_with(MILD, call=report_steps(callback))
            assert len(seen) >= 2 * 2 * (1 + ROUNDS)
            assert seen == [0, 1] * (len(seen) // 2)
            assert states["mine"] == 0
        finally:
            del states["mine"]
