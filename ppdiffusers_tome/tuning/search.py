"""Search for the best settings on this machine.

Candidates are in families, each from mild to strong. The search leaves a family at the first candidate that misses the
required similarity, or that reaches the required speed and memory: stronger ones would only be less similar.
"""

from __future__ import annotations

import inspect
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import NothingToMergeError, ToMeTypeError, ToMeValueError
from ppdiffusers_tome.patching.apply import apply_config, remove_tome
from ppdiffusers_tome.patching.shared_copy import shared_copy
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import describe_type, truncated_repr
from ppdiffusers_tome.tuning.candidates import common_settings, fit_cache, list_candidates, list_counts
from ppdiffusers_tome.tuning.images import psnr as compute_psnr
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.measurement import Meter, highest_peak
from ppdiffusers_tome.tuning.random_state import generator_states, untouched_random_state
from ppdiffusers_tome.tuning.results import ChosenSteps, MeasuredImage, Target, Trial, Tuned
from ppdiffusers_tome.tuning.step_errors import choose_steps, count_images, measure_step_errors

NUM_CHOOSING = 2  # images by which the computed steps of a cache are chosen
_LEAST_SPEED_UP = 1.03  # two runs of the same settings differ by less


# With a number it generates in so many steps, otherwise in those of the call.
Generator = Callable[..., MeasuredImage]


def tune(
    pipe: Any, call: Mapping[str, Any] | Sequence[Mapping[str, Any]], *,
    psnr: float | None = None, speedup: float | None = None, memory: int | None = None,
    config: ToMeConfig | str | Path | None = None, families: Mapping[str, Sequence[ToMeConfig]] | None = None,
    on_begin: Callable[[int, float], None] = lambda num_images, seconds: None,
    on_trial: Callable[[Trial], None] = lambda trial: None, **settings: Any,
) -> Tuned:  # fmt: skip
    """Find settings by trying them on ``pipe(**call)``.

    It generates about 60 images on a shared copy of the pipeline (``shared_copy``), more with several calls. The
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
    has_target = not (psnr is None and speedup is None and memory is None)
    target = Target(psnr if has_target else 30.0, speedup, memory)
    list_candidates(config, settings, families)  # before the copy, which takes time
    try:
        copied_pipe = shared_copy(pipe)
    except ToMeValueError as error:
        raise ToMeValueError(f"tune generates with a shared copy of the pipeline; {error}") from error
    states = dict(generator_states())

    def generate(arguments: Mapping[str, Any], seed: int, fewer_steps: int | None = None) -> MeasuredImage:
        paddle.seed(seed)
        np.random.seed(seed)
        generator_states().update(states)
        changes = {} if fewer_steps is None else {"num_inference_steps": fewer_steps}
        meter = Meter()
        output = copied_pipe(**{**arguments, **changes})
        seconds, peak_bytes = meter.seconds(), meter.peak_bytes()
        return MeasuredImage(read_first_image(output), seconds, peak_bytes)

    arguments = [{name: _replace_pipeline(value, pipe, copied_pipe) for name, value in each.items()} for each in calls]
    choosing = (arguments * NUM_CHOOSING)[:NUM_CHOOSING]
    with untouched_random_state():
        return tune_images(
            copied_pipe, [partial(generate, each, 0) for each in arguments], target,
            choosing=[partial(generate, each, seed) for seed, each in enumerate(choosing, 1)],
            steps=_find_num_steps(copied_pipe, calls[0]), config=config, settings=settings,
            families=families, on_begin=on_begin, on_trial=on_trial,
        )  # fmt: skip


def _check_call(call: Any) -> None:
    """Check the arguments of a call of the pipeline."""
    if not isinstance(call, Mapping) or not all(isinstance(name, str) for name in call):
        raise ToMeTypeError(
            f"call={truncated_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}, or a list of such; got {describe_type(call)}"
        )
    if isinstance(call.get("output_type"), str) and call["output_type"] == "latent":
        raise ToMeTypeError("tune compares images, and output_type='latent' returns none; omit output_type in call")


def tune_images(
    pipe: Any, generators: Sequence[Generator], target: Target, *, choosing: Sequence[Generator] = (),
    steps: int | None = None, config: ToMeConfig | str | Path | None = None,
    settings: Mapping[str, Any] | None = None, families: Mapping[str, Sequence[ToMeConfig]] | None = None,
    on_begin: Callable[[int, float], None] = lambda num_images, seconds: None,
    on_steps: Callable[[Mapping[int, ChosenSteps]], None] = lambda chosen: None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    known_steps: Mapping[int, ChosenSteps] | None = None, known_trials: Iterable[Trial] = (),
) -> Tuned:  # fmt: skip
    """Find settings by several images, generated by the caller's functions.

    Args:
        pipe: the pipeline that the functions generate with; it has no ToMe afterwards.
        generators: functions that each generate and measure one image, the same one at every call, with fewer steps
            if they are given a number.
        target: the requirements.
        choosing: functions of other images, by which the computed steps of a cache are chosen; without any, the
            families' rule chooses them.
        steps: of the denoising; None if unknown, then fewer steps are not tried.
        config, settings, families, on_begin, on_trial: as for ``tune``.
        on_steps: called once with the chosen steps, by their number, if there are any.
        known_steps, known_trials: of an earlier, interrupted search with the same images, which are not repeated.
    """
    by_family = list_candidates(config, settings, families, steps=steps)
    unmerged_config = ToMeConfig(**{**common_settings(config, settings), "ratio": 0.0}).without_cache
    known = list(known_trials)
    try:
        remove_tome(pipe)
        generators[0]()  # the first call is slower, as kernels are set up
        unmerged = [generate() for generate in generators]
        seconds = statistics.median(image.seconds for image in unmerged)
        # The best and up to three with fewer steps are generated beside the unmerged image; of two of these, the time
        # of a step is measured before.
        num_trials = sum(map(len, by_family.values())) - len(known) + 2 * (1 + (0 if steps is None else 5))
        chooses = steps is not None and known_steps is None and bool(list_counts(by_family, steps))
        num_images = len(generators) * num_trials + (len(choosing) * count_images(steps or 0) if chooses else 0)
        on_begin(num_images, num_images * seconds)
        chosen = known_steps
        if chosen is None:
            chosen = _choose_steps(pipe, choosing, by_family)
            if chosen:
                on_steps(chosen)
        fitted = fit_cache(by_family, chosen, type(getattr(pipe, "scheduler", None)).__name__)
        trials = _try_candidates(pipe, generators, unmerged, fitted, target, on_trial, known)
        best = _choose([trial for trial in trials if trial.meets(target)], target)
        if best is not None:
            best = replace(best, speed_up=_generate_side_by_side(pipe, best.config, generators)[0])
        if best is not None and steps is not None and steps > 1:
            fewer = _try_fewer_steps(pipe, generators, unmerged, best, trials, target, steps)
            for trial in fewer:
                trials.append(trial)
                on_trial(trial)
            best = _choose_over_fewer_steps(best, fewer, target)
    finally:
        remove_tome(pipe)
    pays = best is not None and (best.speed_up >= _LEAST_SPEED_UP or target.memory is not None)
    return Tuned(
        best.config if best is not None and pays else unmerged_config, pays, tuple(trials),
        _describe_result(best, pays, trials), statistics.median(image.seconds for image in unmerged),
        highest_peak(image.peak_bytes for image in unmerged), best.steps if best is not None and pays else None,
    )  # fmt: skip


def _choose_steps(
    pipe: Any, choosing: Sequence[Generator], families: Mapping[str, Sequence[ToMeConfig]]
) -> dict[int, ChosenSteps]:
    """Choose the computed steps for each number of them that a candidate has.

    Returns:
        Nothing where no candidate skips a fraction of the steps, or these calls cannot tell which to choose.
    """
    if not choosing or not list_counts(families, 1000):  # whatever the number of steps is
        return {}
    try:
        errors = [measure_step_errors(pipe, generate) for generate in choosing]
    except (NothingToMergeError, ToMeValueError) as error:
        warnings.warn(f"ToMe: {error}; tune goes on with the rule of the model's family", stacklevel=2)
        return {}
    if len({len(each.damage) for each in errors}) > 1:
        return {}
    return {count: choose_steps(errors, count) for count in list_counts(families, len(errors[0].damage))}


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


def _try_candidates(
    pipe: Any, generators: Sequence[Generator], unmerged: Sequence[MeasuredImage],
    by_family: Mapping[str, Sequence[ToMeConfig]], target: Target, on_trial: Callable[[Trial], None],
    known_trials: Iterable[Trial],
) -> list[Trial]:  # fmt: skip
    """Try the candidates of each family until it is left.

    Raises:
        NothingToMergeError: nothing merges with any of them.
    """
    known = {trial.config: trial for trial in known_trials if trial.steps is None}
    trials: dict[ToMeConfig, Trial] = {}
    refusal: NothingToMergeError | None = None
    for family, configs in by_family.items():
        for config in configs:
            if config in known:
                trials[config] = known[config]
            if config not in trials:  # two families may have the same candidate
                try:
                    apply_config(pipe, config)
                except NothingToMergeError as error:
                    refusal = error
                    continue
                trials[config] = _make_trial(family, config, unmerged, [generate() for generate in generators])
                on_trial(trials[config])
            trial = trials[config]
            if not trial.is_similar_enough(target) or (target.psnr is None and trial.is_cheap_enough(target)):
                break
    if not trials and refusal is not None:
        raise refusal
    return list(trials.values())


def _try_fewer_steps(
    pipe: Any, generators: Sequence[Generator], unmerged: Sequence[MeasuredImage], best: Trial, trials: Sequence[Trial],
    target: Target, steps: int,
) -> list[Trial]:  # fmt: skip
    """Try fewer steps in the time of the best trial: unmerged, with its merging, and with the best merging alone."""
    alone = _choose([trial for trial in trials if not trial.config.cache and trial.meets(target)], target)
    merging = [best.config.without_cache, *([] if alone is None else [alone.config])]
    fewer = []
    for config in dict.fromkeys([ToMeConfig(0.0), *(config for config in merging if config.ratio != 0)]):
        if config == best.config:
            continue
        per_step = 1.0 if config.ratio == 0 else _generate_side_by_side(pipe, config, generators)[0]
        number = min(steps - 1, max(1, round(steps * per_step / best.speed_up)))
        speed_up, images = _generate_side_by_side(pipe, config, generators, number)
        trial = _make_trial("fewer steps", config, unmerged, images, number)
        fewer.append(replace(trial, speed_up=speed_up))
    return fewer


def _choose_over_fewer_steps(best: Trial, fewer: Sequence[Trial], target: Target) -> Trial:
    """Return fewer steps in place of the best where they keep more in the same time."""
    as_fast = [trial for trial in fewer if trial.meets(target) and trial.speed_up * _LEAST_SPEED_UP >= best.speed_up]
    return max([best, *as_fast], key=lambda trial: trial.psnr)


def _make_trial(
    family: str, config: ToMeConfig, unmerged: Sequence[MeasuredImage], images: Sequence[MeasuredImage],
    steps: int | None = None,
) -> Trial:  # fmt: skip
    psnr = min(compute_psnr(before.pixels, after.pixels) for before, after in zip(unmerged, images, strict=True))
    peak = highest_peak(image.peak_bytes for image in images)
    return Trial(family, config, _speed_up(unmerged, images), psnr, peak, steps)


def _speed_up(unmerged: Sequence[MeasuredImage], images: Sequence[MeasuredImage]) -> float:
    """Return the median over the images."""
    return statistics.median(one.seconds / another.seconds for one, another in zip(unmerged, images, strict=True))


def _choose(trials: Sequence[Trial], target: Target) -> Trial | None:
    """Return the fastest trial for a PSNR, otherwise the most similar."""
    if target.psnr is not None:
        return max(trials, key=lambda trial: trial.speed_up, default=None)
    return max(trials, key=lambda trial: (trial.psnr, trial.speed_up), default=None)


def _generate_side_by_side(
    pipe: Any, config: ToMeConfig, generators: Sequence[Generator], steps: int | None = None
) -> tuple[float, list[MeasuredImage]]:
    """Generate with settings, and maybe fewer steps, right after the unmerged images.

    Machines change their speed, and the first unmerged images are old.

    Returns:
        The median speed-up, and the images.
    """
    ratios, images = [], []
    for generate in generators:
        remove_tome(pipe)
        unmerged_seconds = generate().seconds
        if config.ratio != 0 or config.cache:
            apply_config(pipe, config)
        images.append(generate() if steps is None else generate(steps))
        ratios.append(unmerged_seconds / images[-1].seconds)
    return statistics.median(ratios), images


def _describe_result(best: Trial | None, pays: bool, trials: Sequence[Trial]) -> str:
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
    if best.steps is not None:
        settings = "nothing merged" if best.config.ratio == 0 else best.config.summary
        whole = [trial for trial in trials if trial.steps is None]
        as_fast = [trial for trial in whole if trial.speed_up * _LEAST_SPEED_UP >= best.speed_up]
        other = max(as_fast, key=lambda trial: trial.psnr, default=None)
        beside = "" if other is None else f"; the best in that time, {other.config.summary}, has {other.psnr:.1f} dB"
        return (
            f"Fewer steps are best here: {best.steps} with {settings}, {best.speed_up:.2f}x the speed at a PSNR of "
            f"{best.psnr:.1f} dB{beside}"
        )
    fewer = max((trial for trial in trials if trial.steps is not None), key=lambda trial: trial.psnr, default=None)
    beside = ""
    if fewer is not None:
        settings = "nothing merged" if fewer.config.ratio == 0 else fewer.config.summary
        beside = f"; in about the same time, {fewer.steps} steps with {settings} have {fewer.psnr:.1f} dB"
    return f"The chosen settings, {best.config.summary}, run at {result}, with a PSNR of {best.psnr:.1f} dB{beside}"
