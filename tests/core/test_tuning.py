"""Tuning: which settings are tried, which are chosen, and what is left behind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tiny
from ppdiffusers_tome import (
    NothingToMergeError,
    Target,
    ToMeConfig,
    ToMeTypeError,
    ToMeValueError,
    Trial,
    apply_tome,
    tune,
    tune_call,
)
from ppdiffusers_tome.measure import measured
from ppdiffusers_tome.tuning import FAMILIES, _best

PROMPT = dict(
    prompt_embeds=tiny.text(1), negative_prompt_embeds=tiny.text(1) * 0, height=64, width=64, num_inference_steps=2
)  # fmt: skip
MILD, STRONG = ToMeConfig(0.1), ToMeConfig(0.74)


def pipeline() -> Any:
    return tiny.pipeline()


def tuned(target: Target, families: dict[str, Any], pipe: Any = None, call: dict[str, Any] | None = None) -> Any:
    return tune_call(pipe or pipeline(), call or PROMPT, target, families=families)


class TestTarget:
    @pytest.mark.parametrize(
        ("given", "error", "words"),
        [
            ({}, ToMeValueError, "there is no target; give at least one of psnr=30"),
            (dict(psnr=0), ToMeValueError, "psnr=0 must be a finite number, above 0"),
            (dict(psnr=math.nan), ToMeValueError, "psnr=nan must be a finite number"),
            (dict(speedup=0.5), ToMeValueError, "speedup=0.5 must be a finite number, 1 or more"),
            (dict(memory="8GiB"), ToMeTypeError, "memory='8GiB' must be a number; got str"),
            (dict(psnr=True), ToMeTypeError, "psnr=True must be a number; got bool"),
        ],
    )
    def test_a_bad_one_is_refused(self, given: dict[str, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            Target(**given)


def trial(speed_up: float, psnr: float, peak: int | None = None) -> Trial:
    return Trial("tome", ToMeConfig(), speed_up, psnr, peak)


class TestChoice:
    """With a likeness the fastest; without, the most like."""

    TRIALS = (trial(1.2, 45.0, 900), trial(1.6, 35.0, 700), trial(2.0, 25.0, 500))

    @pytest.mark.parametrize(
        ("target", "chosen"),
        [
            (Target(psnr=30), 1), (Target(psnr=20), 2), (Target(psnr=40), 0), (Target(psnr=50), None),
            (Target(speedup=1.5), 1), (Target(speedup=1.1), 0), (Target(speedup=3), None), (Target(memory=700), 1),
            (Target(memory=400), None), (Target(psnr=20, speedup=1.5), 2), (Target(psnr=30, memory=600), None),
        ],
    )  # fmt: skip
    def test_the_best_that_meets_the_target(self, target: Target, chosen: int | None) -> None:
        best = _best([each for each in self.TRIALS if each.meets(target)], target)
        assert best is (None if chosen is None else self.TRIALS[chosen])

    def test_memory_that_was_not_measured_meets_no_limit(self) -> None:
        assert not trial(2, 40).meets(Target(memory=10**12))


class TestOnAPipeline:
    def test_a_family_is_left_when_it_misses_the_likeness(self) -> None:
        # No two pictures are this alike, so the first of each family is its last.
        found = tuned(Target(psnr=200), {"a": (MILD, STRONG), "b": (STRONG, MILD)})
        assert [(one.family, one.config) for one in found.trials] == [("a", MILD), ("b", STRONG)]
        assert found.config is None
        assert found.verdict.startswith("No settings reach the target here. The fastest tried were ")

    def test_a_family_is_left_when_it_is_fast_enough(self) -> None:
        found = tuned(Target(memory=2**40), {"a": (MILD, STRONG)})
        assert [one.config for one in found.trials] == [MILD]
        assert found.config == MILD

    def test_likeness_is_measured_and_the_unmerged_is_the_reference(self) -> None:
        found = tuned(Target(psnr=1), {"a": (MILD, STRONG)})
        mild, strong = found.trials
        assert math.isfinite(mild.psnr)
        assert mild.psnr > strong.psnr > 1
        nothing = tuned(Target(psnr=1), {"a": (ToMeConfig(0),)})
        assert nothing.trials[0].psnr == math.inf

    def test_the_pipeline_and_the_generators_are_as_before(self) -> None:
        pipe = pipeline()
        apply_tome(pipe, 0.3)
        states = tiny.random_states()
        tuned(Target(psnr=1), {"a": (MILD,)}, pipe)
        assert pipe.tome is None
        assert tiny.random_states() == states

    def test_a_failing_call_leaves_the_pipeline_unmerged(self) -> None:
        pipe = pipeline()
        calls = []

        def draw() -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("out of luck")
            return measured(lambda mark: np.zeros((8, 8, 3), np.uint8))

        with pytest.raises(RuntimeError, match="out of luck"):
            tune(pipe, [draw], Target(psnr=1), families={"a": (MILD,)})
        assert pipe.tome is None

    def test_settings_that_do_not_fit_are_passed_over(self) -> None:
        found = tuned(Target(psnr=1), {"a": (ToMeConfig({8: 0.5}), MILD)})
        assert [one.config for one in found.trials] == [MILD]
        with pytest.raises(NothingToMergeError):
            tuned(Target(psnr=1), {"a": (ToMeConfig({8: 0.5}),)})


class TestAuto:
    def test_it_applies_what_was_chosen(self) -> None:
        pipe = pipeline()
        assert apply_tome(pipe, "auto", call=PROMPT, target={"memory": 2**40}) is pipe
        assert pipe.tome.config == FAMILIES["todo"][0]

    def test_what_does_not_pay_is_said_and_nothing_is_applied(self) -> None:
        pipe = pipeline()
        with pytest.warns(UserWarning, match="No settings reach the target here.*the pipeline stays unmerged"):
            pipe.apply_tome("auto", call=PROMPT, target={"psnr": 500})
        assert pipe.tome is None

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (dict(ratio="auto"), "say how the pipeline is called"),
            (dict(ratio="auto", call=PROMPT, target={"speed": 2}), "unknown target speed; targets are psnr, speedup"),
            (dict(ratio=0.5, call=PROMPT), 'give them with ratio="auto"'),
        ],
    )
    def test_bad_input_is_refused(self, given: dict[str, Any], words: str) -> None:
        pipe = pipeline()
        with pytest.raises(ToMeTypeError, match=words):
            pipe.apply_tome(**given)
        assert pipe.tome is None

    def test_a_call_without_pictures_is_refused(self) -> None:
        pipe = pipeline()
        call = {**PROMPT, "return_dict": False}
        with pytest.raises(ToMeTypeError, match="returned tuple without images"):
            pipe.apply_tome("auto", call=call)
        assert pipe.tome is None


def test_every_family_goes_from_mild_to_strong() -> None:
    for configs in FAMILIES.values():
        ratios = [config.highest_ratio(1) for config in configs]
        assert ratios == sorted(ratios)
