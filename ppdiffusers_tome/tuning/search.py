"""Search for the best settings on this machine.

Candidates are in families, each from mild to strong. The search leaves a family at the first candidate that misses the
required similarity, or that reaches the required speed and memory: stronger ones would only be less similar.
"""

from __future__ import annotations

import inspect
import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from ppdiffusers_tome.settings.bounds import check_type, to_python
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import count_computed_steps
from ppdiffusers_tome.settings.text import describe_type, format_count, shorten_repr
from ppdiffusers_tome.tuning.candidates import common_settings, fit_cache, list_candidates, list_fractions
from ppdiffusers_tome.tuning.images import psnr as compute_psnr
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.measurement import Meter, highest_peak, keep_random_state
from ppdiffusers_tome.tuning.results import (
    LEAST_SPEED_UP,
    ChosenSteps,
    MeasuredImage,
    Target,
    Trial,
    Tuned,
    choose_best,
    choose_over_fewer_steps,
    describe_result,
)
from ppdiffusers_tome.tuning.step_errors import choose_steps, count_images, measure_step_errors

NUM_CHOOSING = 2  # images by which the computed steps of a cache are chosen
_MAX_CONFIRMED = 3  # of the best settings, until one meets the target beside the unmerged images, too
_UNMERGED = ToMeConfig(0.0)
_GOES_ON = "tune goes on with the rule of the model's family for the steps of a cache"

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

    It generates about 70 images on a shared copy of the pipeline (``shared_copy``), more with several calls. The
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
    if families is not None:
        _check_families(families)
    target, steps = Target(psnr, speedup, memory), _find_num_steps(pipe, calls)
    # Before the copy, which takes time.
    candidates = list_candidates(common_settings(config, settings), families, steps=steps)
    try:
        copied_pipe = shared_copy(pipe)
    except ToMeValueError as error:
        raise ToMeValueError(f"tune generates with a shared copy of the pipeline; {error}") from error

    def generate(arguments: Mapping[str, Any], seed: int, fewer_steps: int | None) -> MeasuredImage:
        changes = {} if fewer_steps is None else {"num_inference_steps": fewer_steps}
        with keep_random_state():
            paddle.seed(seed)
            np.random.seed(seed)
            meter = Meter()
            output = copied_pipe(**{**arguments, **changes})
            seconds, peak_bytes = meter.seconds(), meter.peak_bytes()
        return MeasuredImage(read_first_image(output), seconds, peak_bytes)

    arguments = [{name: _replace_pipeline(value, pipe, copied_pipe) for name, value in each.items()} for each in calls]
    images = [(each, 0) for each in arguments]
    return Search(copied_pipe, generate, images, target, candidates, steps, on_begin, on_trial).run()


@dataclass
class Search:
    """A search for settings by several images, generated by the caller's function.

    Attributes:
        pipe: the pipeline that the function generates with; it has no ToMe afterwards.
        generate: generates and measures an image, the same at every call.
        images: the calls and numbers by which all are judged; those that follow choose the steps of a cache.
        target, on_begin, on_trial: as for ``tune``.
        candidates: of ``list_candidates``.
        steps: of the denoising; None if unknown, then fewer steps are not tried, nor are those of a cache chosen.
        on_chosen: called with a fraction of skipped steps and the steps that were chosen for it.
        known_trials, known_steps: what ``on_trial``, for all steps, and ``on_chosen`` got in an interrupted search with
            the same images; it is not repeated.
        unmerged: the first unmerged images.
        missed: the best trials, measured beside unmerged images, that do not meet the target there.
    """

    pipe: Any
    generate: Generate
    images: Sequence[tuple[Any, int]]
    target: Target
    candidates: Mapping[str, Sequence[ToMeConfig]]
    steps: int | None
    on_begin: Callable[[int, float], None]
    on_trial: Callable[[Trial], None]
    on_chosen: Callable[[float, ChosenSteps], None] = lambda fraction, chosen: None
    known_trials: Mapping[ToMeConfig, Trial] = field(default_factory=dict)
    known_steps: Mapping[float, ChosenSteps] = field(default_factory=dict)
    unmerged: Sequence[MeasuredImage] = ()
    missed: dict[ToMeConfig, Trial] = field(default_factory=dict)

    def run(self) -> Tuned:
        """Search, and describe the result."""
        try:
            remove_tome(self.pipe)
            self.generate(*self.images[0], None)  # the first call is slower, as kernels are set up
            self.unmerged = [self.generate(*image, None) for image in self.images]
            seconds = statistics.median(image.seconds for image in self.unmerged)
            peak_bytes = highest_peak(image.peak_bytes for image in self.unmerged)
            fractions = list_fractions(self.candidates) - self.known_steps.keys()
            num_images = self.count_images(chooses=bool(fractions))
            self.on_begin(num_images, num_images * seconds)
            chosen = {**self.known_steps, **self.choose_steps(fractions)}
            trials = self.try_families(fit_cache(self.candidates, chosen, name_scheduler(self.pipe)))
            best = self.confirm_best(trials)
            if best is not None:
                fewer = [] if self.steps is None or self.steps < 2 else self.try_fewer_steps(best, trials, self.steps)
                trials += fewer
                best = choose_over_fewer_steps(best, fewer, self.target)
        finally:
            remove_tome(self.pipe)
        fits = self.target.memory is None or (peak_bytes is not None and peak_bytes <= self.target.memory)
        pays = best is not None and (best.speed_up >= LEAST_SPEED_UP or not fits)
        last = [self.missed.get(trial.config, trial) if trial.steps is None else trial for trial in trials]
        config, steps = (best.config, best.steps) if best is not None and pays else (_UNMERGED, None)
        return Tuned(config, pays, tuple(trials), describe_result(best, pays, last), seconds, peak_bytes, steps)

    def count_images(self, *, chooses: bool) -> int:
        """Count the images of a search at most, without the first unmerged ones."""
        # Up to three best, and three with fewer steps, are generated beside the unmerged image; of two of the latter,
        # the time of a step is measured before.
        num_pairs = _MAX_CONFIRMED + (0 if self.steps is None else 5)
        num_trials = sum(map(len, self.candidates.values())) - len(self.known_trials) + 2 * num_pairs
        num_choosing = NUM_CHOOSING * count_images(self.steps) if chooses and self.steps else 0
        return len(self.images) * num_trials + num_choosing

    def choose_steps(self, fractions: Collection[float]) -> dict[float, ChosenSteps]:
        """Choose the computed steps for each fraction of skipped ones.

        Where these calls cannot tell, there are none, with a warning.
        """
        if not fractions:
            return {}
        if self.steps is None:
            warnings.warn(f"ToMe: the calls differ in their steps, or list them; {_GOES_ON}", stacklevel=2)
            return {}
        number = 1 + max(number for _, number in self.images)
        calls = [call for call, _ in self.images]
        choosing = [(calls[i % len(calls)], number + i) for i in range(NUM_CHOOSING)]
        try:
            errors = [measure_step_errors(self.pipe, partial(self.generate, *image, None)) for image in choosing]
        except (NothingToMergeError, ToMeValueError) as error:
            warnings.warn(f"ToMe: {error}; {_GOES_ON}", stacklevel=2)
            return {}
        num_steps, chosen = len(errors[0].damage), dict[float, ChosenSteps]()
        for fraction in sorted(fractions):
            if (count := count_computed_steps(num_steps, fraction)) < num_steps:
                chosen[fraction] = choose_steps(errors, count)
                self.on_chosen(fraction, chosen[fraction])
        return chosen

    def try_families(self, families: Mapping[str, Sequence[ToMeConfig]]) -> list[Trial]:
        """Try the candidates of each family until it is left.

        Raises:
            NothingToMergeError: nothing merges with any of them.
        """
        trials: dict[ToMeConfig, Trial] = {}  # two families may have the same candidate
        refusal: NothingToMergeError | None = None
        for family, configs in families.items():
            for config in configs:
                trial = trials.get(config) or self.known_trials.get(config)
                if trial is None:
                    try:
                        trial = self.try_settings(config, family)
                    except NothingToMergeError as error:
                        refusal = error
                        continue
                    self.on_trial(trial)
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
                try:
                    fewer.append(self.try_settings(config, "fewer steps", number, beside_unmerged=True))
                except Exception as error:  # some schedulers need several steps, and fail in their own ways
                    count = format_count(number, "step")
                    warnings.warn(f"ToMe: {count} cannot be generated ({error}), so they are not tried", stacklevel=2)
                else:
                    self.on_trial(fewer[-1])
        return fewer

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


def _check_call(call: Any) -> None:
    """Refuse what are no arguments of a pipeline that returns images."""
    if not isinstance(call, Mapping) or not all(isinstance(name, str) for name in call):
        raise ToMeTypeError(
            f"call={shorten_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}, or a list of such; got {describe_type(call)}"
        )
    if isinstance(call.get("output_type"), str) and call["output_type"] == "latent":
        raise ToMeTypeError("tune compares images, and output_type='latent' returns none; omit output_type in call")


def _check_families(families: Any) -> None:
    """Refuse what are no settings by family."""
    accepted = "settings by family, as in families={'mild first': [ToMeConfig(0.3), ToMeConfig(0.5)]}"
    check_type(families, Mapping, accepted, "families=")
    for configs in families.values():
        check_type(configs, list | tuple, accepted, "families: ")
        for config in configs:
            check_type(config, ToMeConfig, accepted, "families: ")


def name_scheduler(pipe: Any) -> str | None:
    """Return the class of scheduler of all denoisers that merge, if it is one."""
    schedulers = [next(list_schedulers(pipe, name), None) for name, model in list_models(pipe) if find_blocks(model)]
    names = {type(scheduler).__name__ for scheduler in schedulers if scheduler is not None}
    return names.pop() if len(names) == 1 else None


def _find_num_steps(pipe: Any, calls: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the number of steps of all calls.

    None if they differ, or a call lists its own steps, which no number of steps changes.
    """
    parameter = inspect.signature(type(pipe).__call__).parameters.get("num_inference_steps")
    default = None if parameter is None else parameter.default
    steps, *others = (to_python(call.get("num_inference_steps", default)) for call in calls)
    has_list = any(call.get(name) is not None for call in calls for name in ("timesteps", "sigmas"))
    return None if has_list or not isinstance(steps, int) or any(each != steps for each in others) else steps


def _replace_pipeline(value: Any, pipe: Any, copied_pipe: Any) -> Any:
    """Replace the pipeline, or the owner of a method, by its copy."""
    if isinstance(value, MethodType) and value.__self__ is pipe:
        return MethodType(value.__func__, copied_pipe)
    return copied_pipe if value is pipe else value
