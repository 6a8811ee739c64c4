"""Search for the best settings on this machine.

Candidates are in families, each from mild to strong. The search leaves a family at the first candidate that misses the
required similarity, or that reaches the required speed and memory: stronger ones would only be less similar.
"""

from __future__ import annotations

import inspect
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import NothingToMergeError, ToMeTypeError, ToMeValueError
from ppdiffusers_tome.patching.apply import apply_config, remove_tome
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.models import list_models, list_schedulers
from ppdiffusers_tome.patching.shared_copy import shared_copy
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import count_computed_steps
from ppdiffusers_tome.settings.types import describe_type, shorten_repr
from ppdiffusers_tome.tuning.candidates import common_settings, fit_cache, list_candidates, list_fractions
from ppdiffusers_tome.tuning.images import psnr as compute_psnr
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.measurement import Meter, highest_peak, untouched_random_state
from ppdiffusers_tome.tuning.results import ChosenSteps, MeasuredImage, Target, Trial, Tuned
from ppdiffusers_tome.tuning.step_errors import choose_steps, count_images, measure_step_errors

NUM_CHOOSING = 2  # images by which the computed steps of a cache are chosen
_MAX_CONFIRMED = 3  # of the best settings, until one meets the target beside the unmerged images, too
LEAST_SPEED_UP = 1.03  # two runs of the same settings differ by less
_UNMERGED = ToMeConfig(0.0)

# Generates an image of a call, whose number is added to the seed, in so many steps or those of the call (None).
Generate = Callable[[Any, int, int | None], MeasuredImage]


def tune(
    pipe: Any, call: Mapping[str, Any] | Sequence[Mapping[str, Any]], *,
    psnr: float | None = None, speedup: float | None = None, memory: float | None = None,
    config: ToMeConfig | str | Path | None = None, families: Mapping[str, Sequence[ToMeConfig]] | None = None,
    on_begin: Callable[[int, float], None] = lambda num_images, seconds: None,
    on_trial: Callable[[Trial], None] = lambda trial: None, **settings: Any,
) -> Tuned:  # fmt: skip
    """Find settings by trying them on ``pipe(**call)``.

    It generates about 65 images on a shared copy of the pipeline (``shared_copy``), more with several calls. The
    pipeline itself stays as it is, with its ToMe or without, and the global random generators are restored. The copy
    takes the pipeline's place as an argument in ``call``, as the owner of a method there, and as the first argument of
    ``callback_on_step_end``; a function in ``call`` that reaches the pipeline otherwise sees the idle original.

    Candidates merge tokens, skip steps (``cache``), or do both. The steps that a cache computes are chosen to fit the
    model, by two images of seeds 1 and 2 that judge nothing. All candidates are judged by the images of seed 0. A call
    that fixes its noise by ``latents`` or ``generator`` is judged by the image that its steps were chosen by.

    The best is compared with fewer steps of denoising in the same time, unmerged and merged. Where those keep more,
    they are what is returned.

    Args:
        pipe: any ppdiffusers pipeline whose calls return images.
        call: the arguments of its call by name, ``{"prompt": "a cat", "height": 768, "width": 768}``; or several calls,
            for settings that hold for all of them.
        psnr, speedup, memory: the requirements, see ``Target``; a PSNR of 30 dB by default. With a PSNR, the fastest
            settings that meet them are chosen; without one, those with the images most similar to the unmerged ones.
        config: settings to keep, as for ``apply_tome``, except the ratio, which is searched.
        families: candidates to try in place of the default ones, by family from mild to strong.
        on_begin: called once before the search with the number of images at most and the seconds that they take, both
            estimated.
        on_trial: called with each trial after it.
        settings: settings to keep by name, as for ``apply_tome``; they replace those of ``config``. Candidates that
            they make impossible are omitted.

    Returns:
        The settings to apply, and all trials. If no settings pay, they change nothing, and ``pays`` is False.

    Raises:
        ToMeTypeError: an argument is of the wrong type, a setting is unknown, or the call returns no images.
        ToMeValueError: an argument is out of range, no candidate is possible, or the pipeline cannot be copied, as one
            with a cache of steps.
        NothingToMergeError: nothing merges in this pipeline with any candidate.

    Example:
        >>> tuned = tune(pipe, {"prompt": "a cat"}, psnr=30, max_downsample=2)  # doctest: +SKIP
        >>> pipe.apply_tome(tuned.config)  # doctest: +SKIP
    """
    calls: list[Any] = list(call) if isinstance(call, list | tuple) and call else [call]
    for each in calls:
        _check_call(each)
    target = Target(psnr, speedup, memory)
    kept, steps = common_settings(config, settings), _find_num_steps(pipe, calls[0])
    candidates = list_candidates(kept, families, steps=steps)  # before the copy, which takes time
    try:
        copied_pipe = shared_copy(pipe)
    except ToMeValueError as error:
        raise ToMeValueError(f"tune generates with a shared copy of the pipeline; {error}") from error

    def generate(arguments: Mapping[str, Any], seed: int, fewer_steps: int | None) -> MeasuredImage:
        changes = {} if fewer_steps is None else {"num_inference_steps": fewer_steps}
        with untouched_random_state():
            paddle.seed(seed)
            np.random.seed(seed)
            meter = Meter()
            output = copied_pipe(**{**arguments, **changes})
            seconds, peak_bytes = meter.seconds(), meter.peak_bytes()
        return MeasuredImage(read_first_image(output), seconds, peak_bytes)

    arguments = [{name: _replace_pipeline(value, pipe, copied_pipe) for name, value in each.items()} for each in calls]
    images = [(each, 0) for each in arguments]
    return Search(copied_pipe, generate, images, target, candidates, kept, steps, on_begin, on_trial).run()


@dataclass
class Search:
    """A search for settings by several images, generated by the caller's function.

    Attributes:
        pipe: the pipeline that the function generates with; it has no ToMe afterwards.
        generate: generates and measures an image, the same at every call.
        images: the calls and numbers by which all are judged; those that follow choose the steps of a cache.
        target, on_begin, on_trial: as for ``tune``.
        candidates, kept: of ``list_candidates``, and the settings that they have in common.
        steps: of the denoising; None if unknown, then fewer steps are not tried.
        known: the ``ChosenSteps`` by the fraction that they skip, and the trials by their settings and steps, of an
            interrupted search with the same images, which are not repeated; those of this one are added.
        unmerged: the first unmerged images.
        missed: the best trials, measured beside unmerged images, that do not meet the target there.
    """

    pipe: Any
    generate: Generate
    images: Sequence[tuple[Any, int]]
    target: Target
    candidates: Mapping[str, Sequence[ToMeConfig]]
    kept: Mapping[str, Any]
    steps: int | None
    on_begin: Callable[[int, float], None]
    on_trial: Callable[[Trial], None]
    known: MutableMapping[Any, Any] = field(default_factory=dict)
    unmerged: Sequence[MeasuredImage] = ()
    missed: dict[ToMeConfig, Trial] = field(default_factory=dict)

    def run(self) -> Tuned:
        """Search, and describe the result."""
        try:
            remove_tome(self.pipe)
            self.generate(*self.images[0], None)  # the first call is slower, as kernels are set up
            self.unmerged = [self.generate(*image, None) for image in self.images]
            seconds = statistics.median(image.seconds for image in self.unmerged)
            fractions = list_fractions(self.candidates)
            chooses = not self.known.keys() >= fractions
            num_images = self.count_images(chooses=chooses)
            self.on_begin(num_images, num_images * seconds)
            if chooses:
                self.choose_steps(fractions)
            chosen = {fraction: each for fraction, each in self.known.items() if isinstance(each, ChosenSteps)}
            trials = self.try_families(fit_cache(self.candidates, chosen, name_scheduler(self.pipe)))
            best = self.confirm_best(trials)
            if best is not None:
                fewer = [] if self.steps is None or self.steps < 2 else self.try_fewer_steps(best, trials, self.steps)
                trials += fewer
                best = choose_over_fewer_steps(best, fewer, self.target)
        finally:
            remove_tome(self.pipe)
        pays = best is not None and (best.speed_up >= LEAST_SPEED_UP or self.target.memory is not None)
        config = best.config if best is not None and pays else ToMeConfig(**{**self.kept, "ratio": 0.0}).without_cache
        last = [self.missed.get(trial.config, trial) if trial.steps is None else trial for trial in trials]
        return Tuned(
            config, pays, tuple(trials), describe_result(best, pays, last), seconds,
            highest_peak(image.peak_bytes for image in self.unmerged),
            best.steps if best is not None and pays else None,
        )  # fmt: skip

    def count_images(self, *, chooses: bool) -> int:
        """Count the images of a search at most, without the first unmerged ones."""
        # The best and up to three with fewer steps are generated beside the unmerged image; of two of these, the time
        # of a step is measured before. More than one best is rarely tried.
        num_known = sum(isinstance(each, Trial) and each.steps is None for each in self.known.values())
        num_trials = sum(map(len, self.candidates.values())) - num_known + 2 * (1 + (0 if self.steps is None else 5))
        num_choosing = NUM_CHOOSING * count_images(self.steps) if chooses and self.steps else 0
        return len(self.images) * num_trials + num_choosing

    def choose_steps(self, fractions: Iterable[float]) -> None:
        """Choose the computed steps where each fraction is skipped, if these calls can tell."""
        number = 1 + max(number for _, number in self.images)
        calls = [call for call, _ in self.images]
        choosing = [(calls[i % len(calls)], number + i) for i in range(NUM_CHOOSING)]
        try:
            errors = [measure_step_errors(self.pipe, partial(self.generate, *image, None)) for image in choosing]
        except (NothingToMergeError, ToMeValueError) as error:
            warnings.warn(f"ToMe: {error}; tune goes on with the rule of the model's family", stacklevel=2)
            return
        num_steps, *others = {len(each.damage) for each in errors}
        for fraction in () if others else sorted(fractions):
            if (count := count_computed_steps(num_steps, fraction)) < num_steps:
                self.known[fraction] = choose_steps(errors, count)

    def try_families(self, families: Mapping[str, Sequence[ToMeConfig]]) -> list[Trial]:
        """Try the candidates of each family until it is left.

        Raises:
            NothingToMergeError: nothing merges with any of them.
        """
        trials: dict[ToMeConfig, Trial] = {}  # two families may have the same candidate
        refusal: NothingToMergeError | None = None
        for family, configs in families.items():
            for config in configs:
                try:
                    trial = self.known.get((config, None)) or self.report(self.try_settings(config, family))
                except NothingToMergeError as error:
                    refusal = error
                    continue
                trials[config] = trial
                is_enough = self.target.psnr is None and trial.is_cheap_enough(self.target)
                if is_enough or not trial.is_similar_enough(self.target):
                    break
        if not trials and refusal is not None:
            raise refusal
        return list(trials.values())

    def confirm_best(self, trials: Sequence[Trial]) -> Trial | None:
        """Return the best trial that also meets the target beside unmerged images."""
        for _ in range(_MAX_CONFIRMED):
            best = choose_best([trial for trial in trials if trial.config not in self.missed], self.target)
            if best is None:
                break
            confirmed = replace(best, speed_up=self.try_settings(best.config, beside_unmerged=True).speed_up)
            if confirmed.meets(self.target):
                return confirmed
            self.missed[best.config] = confirmed
        return None

    def try_fewer_steps(self, best: Trial, trials: Sequence[Trial], steps: int) -> list[Trial]:
        """Try fewer steps in the time of the best trial.

        They are unmerged, with the best trial's merging, and with the best merging that has no cache.
        """
        alone = choose_best([trial for trial in trials if not trial.config.cache], self.target)
        merging = [best.config.without_cache, *([] if alone is None else [alone.config])]
        fewer = []
        for config in dict.fromkeys([_UNMERGED, *(config for config in merging if config.ratio != 0)]):
            if config != best.config:
                per_step = 1.0 if config.ratio == 0 else self.try_settings(config, beside_unmerged=True).speed_up
                number = min(steps - 1, max(1, round(steps * per_step / best.speed_up)))
                fewer.append(self.report(self.try_settings(config, "fewer steps", number, beside_unmerged=True)))
        return fewer

    def report(self, trial: Trial) -> Trial:
        """Keep a trial for an interrupted search, and tell of it."""
        self.known[trial.config, trial.steps] = trial
        self.on_trial(trial)
        return trial

    def try_settings(
        self, config: ToMeConfig, family: str = "", steps: int | None = None, *, beside_unmerged: bool = False
    ) -> Trial:
        """Generate with settings, and compare with the first unmerged images or with new ones.

        Machines change their speed, so a result is compared with images of the same minute.
        """
        pairs = []
        for image, unmerged in zip(self.images, self.unmerged, strict=True):
            remove_tome(self.pipe)
            if beside_unmerged:
                unmerged = self.generate(*image, None)
            if config.ratio != 0 or config.cache:
                apply_config(self.pipe, config)
            pairs.append((unmerged, self.generate(*image, steps)))
        speed_up = statistics.median(before.seconds / after.seconds for before, after in pairs)
        psnr = min(compute_psnr(before.pixels, after.pixels) for before, after in pairs)
        return Trial(family, config, speed_up, psnr, highest_peak(after.peak_bytes for _, after in pairs), steps)


def choose_best(trials: Sequence[Trial], target: Target) -> Trial | None:
    """Return the trial that meets the target best, if any."""
    reaching = [trial for trial in trials if trial.meets(target)]
    if target.psnr is not None:
        return max(reaching, key=lambda trial: trial.speed_up, default=None)
    return max(reaching, key=lambda trial: (trial.psnr, trial.speed_up), default=None)


def choose_over_fewer_steps(best: Trial, fewer: Sequence[Trial], target: Target) -> Trial:
    """Return fewer steps where they keep more in the same time."""
    as_fast = [trial for trial in fewer if trial.meets(target) and trial.speed_up * LEAST_SPEED_UP >= best.speed_up]
    return max([best, *as_fast], key=lambda trial: trial.psnr)


def describe_result(best: Trial | None, pays: bool, trials: Sequence[Trial]) -> str:
    """Describe the best trial, and what else the same time gives."""
    if best is None:
        fastest = max(trials, key=lambda trial: trial.speed_up)
        most_similar = max(trials, key=lambda trial: trial.psnr)
        return (
            f"No settings reach the target here. The fastest tried were {fastest.speed_up:.2f}x with a PSNR of "
            f"{fastest.psnr:.1f} dB, the most similar {most_similar.psnr:.1f} dB with {most_similar.speed_up:.2f}x"
        )
    result = f"{best.speed_up:.2f}x the speed, timed side by side with the unmerged image"
    if not pays:
        return (
            f"No settings give a speed-up on this machine at this size: the best that reach the target, "
            f"{best.config.summary}, run at {result}. Attention takes too small a part of the time; a larger image has "
            "a larger speed-up"
        )
    others = [
        trial for trial in trials
        if (trial.steps is None) != (best.steps is None)
        and (best.steps is None or trial.speed_up * LEAST_SPEED_UP >= best.speed_up)
    ]  # fmt: skip
    other, beside = max(others, key=lambda trial: trial.psnr, default=None), ""
    if other is not None:
        time = "in about the same time" if best.steps is None else "all steps in that time"
        beside = f"; {time}: {other.name}, {other.psnr:.1f} dB"
    if best.steps is None:
        return f"The chosen settings, {best.name}, run at {result}, with a PSNR of {best.psnr:.1f} dB{beside}"
    fewer = f"{best.name}, {best.speed_up:.2f}x the speed at a PSNR of {best.psnr:.1f} dB"
    return f"Fewer steps are best here: {fewer}{beside}"


def _check_call(call: Any) -> None:
    """Check the arguments of a call of the pipeline."""
    if not isinstance(call, Mapping) or not all(isinstance(name, str) for name in call):
        raise ToMeTypeError(
            f"call={shorten_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}, or a list of such; got {describe_type(call)}"
        )
    if isinstance(call.get("output_type"), str) and call["output_type"] == "latent":
        raise ToMeTypeError("tune compares images, and output_type='latent' returns none; omit output_type in call")


def name_scheduler(pipe: Any) -> str | None:
    """Return the class of scheduler of all denoisers that merge, if it is one."""
    schedulers = [next(list_schedulers(pipe, name), None) for name, model in list_models(pipe) if find_blocks(model)]
    names = {type(scheduler).__name__ for scheduler in schedulers if scheduler is not None}
    return names.pop() if len(names) == 1 else None


def _find_num_steps(pipe: Any, call: Mapping[str, Any]) -> int | None:
    """Return the number of steps of a call, or None."""
    parameter = inspect.signature(type(pipe).__call__).parameters.get("num_inference_steps")
    steps = call.get("num_inference_steps", None if parameter is None else parameter.default)
    return steps if isinstance(steps, int) else None


def _replace_pipeline(value: Any, pipe: Any, copied_pipe: Any) -> Any:
    """Replace the pipeline, or the owner of a method, by its copy."""
    if isinstance(value, MethodType) and value.__self__ is pipe:
        return MethodType(value.__func__, copied_pipe)
    return copied_pipe if value is pipe else value
