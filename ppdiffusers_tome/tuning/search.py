"""Search for the best settings on this machine.

Candidates are in families, each from mild to strong. The search leaves a family at the first candidate that misses the
required similarity, or that reaches the required speed and memory: stronger ones would only be less similar.
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from ppdiffusers_tome.tuning.candidates import common_settings, list_candidates
from ppdiffusers_tome.tuning.images import psnr as compute_psnr
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.measurement import Meter
from ppdiffusers_tome.tuning.random_state import generator_states, untouched_random_state
from ppdiffusers_tome.tuning.results import Target, Trial, Tuned

_LEAST_SPEED_UP = 1.03  # two runs of the same settings differ by less


@dataclass(frozen=True)
class MeasuredImage:
    """An image and the cost of its call."""

    pixels: np.ndarray  # uint8 [height, width, 3]
    seconds: float
    peak_bytes: int | None  # None if it could not be measured


# With a number it generates in so many steps, otherwise in those of the call.
Generator = Callable[..., MeasuredImage]


def tune(
    pipe: Any, call: Mapping[str, Any], *,
    psnr: float | None = None, speedup: float | None = None, memory: int | None = None,
    config: ToMeConfig | str | Path | None = None, families: Mapping[str, Sequence[ToMeConfig]] | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None, **settings: Any,
) -> Tuned:  # fmt: skip
    """Find settings by trying them on ``pipe(**call)``.

    It generates about thirty images, all with seed 0, on a shared copy of the pipeline (``shared_copy``). The
    pipeline itself stays as it is, with its ToMe or without, and the global random generators are restored. The copy
    takes the pipeline's place as an argument in ``call``, as the owner of a method there, and as the first argument of
    ``callback_on_step_end``; a function in ``call`` that reaches the pipeline otherwise sees the idle original.

    Candidates merge tokens, skip steps (``cache``), or do both. If the best skips steps, the simplest way to be as fast
    is measured too, fewer steps of denoising, unmerged and merged; the verdict says where that keeps more.

    Args:
        pipe: any ppdiffusers pipeline whose calls return images.
        call: the arguments of its call by name, ``{"prompt": "a cat", "height": 768, "width": 768}``.
        psnr, speedup, memory: the requirements, see ``Target``; a PSNR of 30 dB by default. With a PSNR, the fastest
            settings that meet them are chosen; without one, those with the images most similar to the unmerged ones.
        config: settings to keep, as for ``apply_tome``, except the ratio, which is searched.
        families: candidates to try in place of the default ones, by family from mild to strong.
        on_trial: called with each trial after it.
        settings: settings to keep by name, as for ``apply_tome``; they replace those of ``config``. Candidates that
            they make impossible are omitted.

    Returns:
        The settings to apply, and all trials. If no settings pay, they merge nothing, and ``pays`` is False.

    Raises:
        ToMeTypeError: an argument is of the wrong type, a setting is unknown, or the call returns no images.
        ToMeValueError: an argument is out of range, no candidate is possible, or the pipeline cannot be copied, as one
            with a cache of steps.
        NothingToMergeError: nothing merges in this pipeline with any candidate.

    Example:
        >>> tuned = tune(pipe, {"prompt": "a cat"}, psnr=30, max_downsample=2)  # doctest: +SKIP
        >>> pipe.apply_tome(tuned.config)  # doctest: +SKIP
    """
    if not isinstance(call, Mapping) or not all(isinstance(name, str) for name in call):
        raise ToMeTypeError(
            f"call={truncated_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}; got {describe_type(call)}"
        )
    if isinstance(call.get("output_type"), str) and call["output_type"] == "latent":
        raise ToMeTypeError("tune compares images, and output_type='latent' returns none; omit output_type in call")
    has_target = not (psnr is None and speedup is None and memory is None)
    target = Target(psnr if has_target else 30.0, speedup, memory)
    list_candidates(config, settings, families)  # before the copy, which takes time
    try:
        copied_pipe = shared_copy(pipe)
    except ToMeValueError as error:
        raise ToMeValueError(f"tune generates with a shared copy of the pipeline; {error}") from error
    arguments = {name: _replace_pipeline(value, pipe, copied_pipe) for name, value in call.items()}
    states = dict(generator_states())

    def generate(fewer_steps: int | None = None) -> MeasuredImage:
        paddle.seed(0)
        np.random.seed(0)
        generator_states().update(states)
        changes = {} if fewer_steps is None else {"num_inference_steps": fewer_steps}
        meter = Meter()
        output = copied_pipe(**{**arguments, **changes})
        seconds, peak_bytes = meter.seconds(), meter.peak_bytes()
        return MeasuredImage(read_first_image(output), seconds, peak_bytes)

    with untouched_random_state():
        return tune_images(
            copied_pipe, [generate], target, steps=_find_num_steps(copied_pipe, call), config=config, settings=settings,
            families=families, on_trial=on_trial,
        )  # fmt: skip


def tune_images(
    pipe: Any, generators: Sequence[Generator], target: Target, *, steps: int | None = None,
    config: ToMeConfig | str | Path | None = None, settings: Mapping[str, Any] | None = None,
    families: Mapping[str, Sequence[ToMeConfig]] | None = None, on_trial: Callable[[Trial], None] = lambda trial: None,
    known_trials: Iterable[Trial] = (),
) -> Tuned:  # fmt: skip
    """Find settings by several images, generated by the caller's functions.

    Args:
        pipe: the pipeline that the functions generate with; it has no ToMe afterwards.
        generators: functions that each generate and measure one image, the same one at every call, with fewer steps
            if they are given a number.
        target: the requirements.
        steps: of the denoising; None if unknown, then fewer steps are not tried.
        config, settings, families, on_trial: as for ``tune``.
        known_trials: of an earlier, interrupted search with the same images, which are not repeated.
    """
    by_family = list_candidates(config, settings, families, steps=steps)
    unmerged_config = ToMeConfig(**{**common_settings(config, settings), "ratio": 0.0})
    speed_up = 0.0
    try:
        remove_tome(pipe)
        generators[0]()  # the first call is slower, as kernels are set up
        unmerged = [generate() for generate in generators]
        trials = _try_candidates(pipe, generators, unmerged, by_family, target, on_trial, known_trials)
        best = _choose([trial for trial in trials if trial.meets(target)], target)
        if best is not None:
            speed_up = _measure_side_by_side(pipe, best.config, generators)
        if best is not None and best.config.cache and steps is not None:
            for trial in _try_fewer_steps(pipe, generators, unmerged, best.config, steps, speed_up):
                trials.append(trial)
                on_trial(trial)
    finally:
        remove_tome(pipe)
    pays = best is not None and (speed_up >= _LEAST_SPEED_UP or target.memory is not None)
    return Tuned(
        best.config if best is not None and pays else unmerged_config, pays, tuple(trials),
        _describe_result(best, speed_up, pays, trials),
        statistics.median(image.seconds for image in unmerged), _max_peak(unmerged),
    )  # fmt: skip


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
    pipe: Any, generators: Sequence[Generator], unmerged: Sequence[MeasuredImage], config: ToMeConfig, steps: int,
    speed_up: float,
) -> list[Trial]:  # fmt: skip
    """Try fewer steps in the same time, unmerged and with the same merging."""
    trials, merged = [], replace(config, cache=0.0)
    for candidate in [ToMeConfig(0.0)] + [merged] * (merged.ratio != 0):
        apply_config(pipe, candidate)
        per_step = 1.0 if candidate.ratio == 0 else _speed_up(unmerged, [generate() for generate in generators])
        fewer = min(steps - 1, max(1, round(steps * per_step / speed_up)))
        images = [generate(fewer) for generate in generators]
        trials.append(_make_trial("fewer steps", candidate, unmerged, images, fewer))
    return trials


def _make_trial(
    family: str, config: ToMeConfig, unmerged: Sequence[MeasuredImage], images: Sequence[MeasuredImage],
    steps: int | None = None,
) -> Trial:  # fmt: skip
    psnr = min(compute_psnr(before.pixels, after.pixels) for before, after in zip(unmerged, images, strict=True))
    return Trial(family, config, _speed_up(unmerged, images), psnr, _max_peak(images), steps)


def _speed_up(unmerged: Sequence[MeasuredImage], images: Sequence[MeasuredImage]) -> float:
    """Return the median over the images."""
    return statistics.median(one.seconds / another.seconds for one, another in zip(unmerged, images, strict=True))


def _max_peak(images: Iterable[MeasuredImage]) -> int | None:
    """Return the highest peak of memory; None if one was not measured."""
    peaks = [image.peak_bytes for image in images]
    return None if None in peaks else max(peak for peak in peaks if peak is not None)


def _choose(trials: Sequence[Trial], target: Target) -> Trial | None:
    """Return the fastest trial for a PSNR, otherwise the most similar."""
    if target.psnr is not None:
        return max(trials, key=lambda trial: trial.speed_up, default=None)
    return max(trials, key=lambda trial: (trial.psnr, trial.speed_up), default=None)


def _measure_side_by_side(
    pipe: Any, config: ToMeConfig, generators: Sequence[Generator]
) -> float:  # fmt: skip
    """Return the median speed-up of merged images over unmerged ones.

    Each is timed right after its unmerged image, as machines change their speed and the first unmerged images are old.
    """
    ratios = []
    for generate in generators:
        remove_tome(pipe)
        unmerged_seconds = generate().seconds
        apply_config(pipe, config)
        ratios.append(unmerged_seconds / generate().seconds)
    return statistics.median(ratios)


def _describe_result(best: Trial | None, speed_up: float, pays: bool, trials: Sequence[Trial]) -> str:
    if best is None:
        fastest = max(trials, key=lambda trial: trial.speed_up)
        most_similar = max(trials, key=lambda trial: trial.psnr)
        return (
            f"No settings reach the target here. The fastest tried were {fastest.speed_up:.2f}x with a PSNR of "
            f"{fastest.psnr:.1f} dB, the most similar {most_similar.psnr:.1f} dB with {most_similar.speed_up:.2f}x"
        )
    timing = f"timed again side by side with the unmerged image ({best.speed_up:.2f}x when they were tried)"
    summary = f"{best.config.summary}, run at {speed_up:.2f}x the speed, {timing}"
    if not pays:
        return (
            f"No settings give a speed-up on this machine at this size: the best that reach the target, {summary}. "
            "Attention takes too small a part of the time; a larger image has a larger speed-up"
        )
    return f"The chosen settings, {summary}, with a PSNR of {best.psnr:.1f} dB{_compare_fewer_steps(best, trials)}"


def _compare_fewer_steps(best: Trial, trials: Sequence[Trial]) -> str:
    """Describe fewer steps in the same time, if they were tried."""
    control = max((trial for trial in trials if trial.steps is not None), key=lambda trial: trial.psnr, default=None)
    if control is None:
        return ""
    settings = "nothing merged" if control.config.ratio == 0 else control.config.summary
    result = f"{control.steps} steps with {settings} have {control.psnr:.1f} dB at {control.speed_up:.2f}x"
    if control.psnr > best.psnr and control.speed_up > best.speed_up * (2 - _LEAST_SPEED_UP):
        return f". Fewer steps are better here: {result}"
    return f"; in about the same time, {result}"
