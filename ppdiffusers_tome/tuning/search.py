"""Search for the best settings on this machine.

Candidates are in families, each from mild to strong. The search leaves a family at the first candidate that misses the
required similarity, or that reaches the required speed and memory: stronger ones would only be less similar.
"""

from __future__ import annotations

import inspect
import statistics
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
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
from ppdiffusers_tome.settings.types import describe_type, shorten_repr
from ppdiffusers_tome.tuning.candidates import common_settings, fit_cache, list_candidates, list_counts
from ppdiffusers_tome.tuning.images import psnr as compute_psnr
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.measurement import Meter, highest_peak
from ppdiffusers_tome.tuning.random_state import generator_states, untouched_random_state
from ppdiffusers_tome.tuning.results import ChosenSteps, MeasuredImage, Target, Trial, Tuned
from ppdiffusers_tome.tuning.step_errors import choose_steps, count_images, measure_step_errors

NUM_CHOOSING = 2  # images by which the computed steps of a cache are chosen
LEAST_SPEED_UP = 1.03  # two runs of the same settings differ by less
_UNMERGED = ToMeConfig(0.0)

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
    kept, steps = common_settings(config, settings), _find_num_steps(pipe, calls[0])
    candidates = list_candidates(kept, families, steps=steps)  # before the copy, which takes time
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
            copied_pipe, [partial(generate, each, 0) for each in arguments], target, candidates, kept,
            choosing=[partial(generate, each, seed) for seed, each in enumerate(choosing, 1)],
            steps=steps, on_begin=on_begin, on_trial=on_trial,
        )  # fmt: skip


def tune_images(
    pipe: Any, generators: Sequence[Generator], target: Target, candidates: Mapping[str, Sequence[ToMeConfig]],
    kept: Mapping[str, Any], *, choosing: Sequence[Generator] = (), steps: int | None = None,
    on_begin: Callable[[int, float], None] = lambda num_images, seconds: None,
    on_trial: Callable[[Trial], None] = lambda trial: None, known: MutableMapping[Any, Any] | None = None,
) -> Tuned:  # fmt: skip
    """Find settings by several images, generated by the caller's functions.

    Args:
        pipe: the pipeline that the functions generate with; it has no ToMe afterwards.
        generators: each generates and measures one image, the same at every call.
        target, on_begin, on_trial: as for ``tune``.
        candidates, kept: of ``list_candidates``, and the settings that they have in common.
        choosing: generators of other images, by which the computed steps of a cache are chosen.
        steps: of the denoising; None if unknown, then fewer steps are not tried.
        known: the ``ChosenSteps`` by their number, and the trials by their settings and steps, of an interrupted search
            with the same images, which are not repeated; those of this one are added.
    """
    known = {} if known is None else known
    try:
        search = _Search(pipe, generators, target)
        seconds = statistics.median(image.seconds for image in search.unmerged)
        chooses = bool(choosing) and (steps is None or not known.keys() >= {*list_counts(candidates, steps)})
        # The best and up to three with fewer steps are generated beside the unmerged image; of two of these, the time
        # of a step is measured before.
        num_known = sum(isinstance(each, Trial) and each.steps is None for each in known.values())
        num_trials = sum(map(len, candidates.values())) - num_known + 2 * (1 + (0 if steps is None else 5))
        num_images = len(generators) * num_trials + (len(choosing) * count_images(steps) if chooses and steps else 0)
        on_begin(num_images, num_images * seconds)
        if chooses:
            for count, each in _choose_steps(pipe, choosing, candidates).items():
                known[count] = each
        chosen = {count: each for count, each in known.items() if isinstance(each, ChosenSteps)}
        fitted = fit_cache(candidates, chosen, name_scheduler(pipe))
        trials = search.try_families(fitted, known, on_trial)
        best = choose_best(trials, target)
        if best is not None:
            best = replace(best, speed_up=search.generate_beside_unmerged(best.config)[0])
            fewer = [] if steps is None or steps < 2 else search.try_fewer_steps(best, trials, steps)
            for trial in fewer:
                trials.append(trial)
                known[trial.config, trial.steps] = trial
                on_trial(trial)
            best = choose_over_fewer_steps(best, fewer, target)
    finally:
        remove_tome(pipe)
    pays = best is not None and (best.speed_up >= LEAST_SPEED_UP or target.memory is not None)
    config = best.config if best is not None and pays else ToMeConfig(**{**kept, "ratio": 0.0}).without_cache
    return Tuned(
        config, pays, tuple(trials), describe_result(best, pays, trials), seconds,
        highest_peak(image.peak_bytes for image in search.unmerged), best.steps if best is not None and pays else None,
    )  # fmt: skip


class _Search:
    """The images of a search, which begins with the unmerged ones."""

    def __init__(self, pipe: Any, generators: Sequence[Generator], target: Target) -> None:
        self.pipe, self.generators, self.target = pipe, generators, target
        remove_tome(pipe)
        generators[0]()  # the first call is slower, as kernels are set up
        self.unmerged = [generate() for generate in generators]

    def try_families(
        self, families: Mapping[str, Sequence[ToMeConfig]], known: MutableMapping[Any, Any],
        on_trial: Callable[[Trial], None],
    ) -> list[Trial]:  # fmt: skip
        """Try the candidates of each family until it is left.

        Raises:
            NothingToMergeError: nothing merges with any of them.
        """
        trials: dict[ToMeConfig, Trial] = {}  # two families may have the same candidate
        refusal: NothingToMergeError | None = None
        for family, configs in families.items():
            for config in configs:
                if (config, None) not in known:
                    try:
                        apply_config(self.pipe, config)
                    except NothingToMergeError as error:
                        refusal = error
                        continue
                    images = [generate() for generate in self.generators]
                    known[config, None] = self._make_trial(family, config, images)
                    on_trial(known[config, None])
                trial = trials[config] = known[config, None]
                is_enough = self.target.psnr is None and trial.is_cheap_enough(self.target)
                if is_enough or not trial.is_similar_enough(self.target):
                    break
        if not trials and refusal is not None:
            raise refusal
        return list(trials.values())

    def try_fewer_steps(self, best: Trial, trials: Sequence[Trial], steps: int) -> list[Trial]:
        """Try fewer steps in the time of the best trial.

        They are unmerged, with the best trial's merging, and with the best merging that has no cache.
        """
        alone = choose_best([trial for trial in trials if not trial.config.cache], self.target)
        merging = [best.config.without_cache, *([] if alone is None else [alone.config])]
        fewer = []
        for config in dict.fromkeys([_UNMERGED, *(config for config in merging if config.ratio != 0)]):
            if config != best.config:
                per_step = 1.0 if config.ratio == 0 else self.generate_beside_unmerged(config)[0]
                number = min(steps - 1, max(1, round(steps * per_step / best.speed_up)))
                speed_up, images = self.generate_beside_unmerged(config, number)
                fewer.append(replace(self._make_trial("fewer steps", config, images, number), speed_up=speed_up))
        return fewer

    def generate_beside_unmerged(
        self, config: ToMeConfig, steps: int | None = None
    ) -> tuple[float, list[MeasuredImage]]:
        """Generate with settings, and maybe fewer steps, right after the unmerged images.

        Machines change their speed, and the first unmerged images are old.

        Returns:
            The median speed-up, and the images.
        """
        ratios, images = [], []
        for generate in self.generators:
            remove_tome(self.pipe)
            unmerged_seconds = generate().seconds
            if config.ratio != 0 or config.cache:
                apply_config(self.pipe, config)
            images.append(generate() if steps is None else generate(steps))
            ratios.append(unmerged_seconds / images[-1].seconds)
        return statistics.median(ratios), images

    def _make_trial(
        self, family: str, config: ToMeConfig, images: Sequence[MeasuredImage], steps: int | None = None
    ) -> Trial:
        pairs = list(zip(self.unmerged, images, strict=True))
        speed_up = statistics.median(before.seconds / after.seconds for before, after in pairs)
        psnr = min(compute_psnr(before.pixels, after.pixels) for before, after in pairs)
        return Trial(family, config, speed_up, psnr, highest_peak(image.peak_bytes for image in images), steps)


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
    others = [trial for trial in trials if (trial.steps is None) != (best.steps is None)]
    if best.steps is not None:
        others = [trial for trial in others if trial.speed_up * LEAST_SPEED_UP >= best.speed_up]
    other = max(others, key=lambda trial: trial.psnr, default=None)
    if best.steps is None:
        beside = "" if other is None else f"; in about the same time: {other.name}, {other.psnr:.1f} dB"
        return f"The chosen settings, {best.name}, run at {result}, with a PSNR of {best.psnr:.1f} dB{beside}"
    beside = "" if other is None else f"; all steps in that time: {other.name}, {other.psnr:.1f} dB"
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
    """Return the class of a pipeline's ``scheduler``; None without, as unCLIP."""
    scheduler = getattr(pipe, "scheduler", None)
    return None if scheduler is None else type(scheduler).__name__


def _choose_steps(
    pipe: Any, choosing: Sequence[Generator], families: Mapping[str, Sequence[ToMeConfig]]
) -> dict[int, ChosenSteps]:
    """Choose the computed steps for each number that candidates have.

    Returns:
        Nothing where no candidate skips a fraction of the steps, or these calls cannot tell which to choose.
    """
    if not list_counts(families, 1000):  # whatever the number of steps is
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
