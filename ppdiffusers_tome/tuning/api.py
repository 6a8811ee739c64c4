"""``tune``: settings for the calls of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import ToMeTypeError
from ppdiffusers_tome.patching.shared_copy import shared_copy
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import describe_type, shorten_repr
from ppdiffusers_tome.tuning.candidates import collect_common_settings, list_candidates
from ppdiffusers_tome.tuning.images import read_first_image
from ppdiffusers_tome.tuning.measurement import Meter, keep_random_state
from ppdiffusers_tome.tuning.results import MeasuredImage, Target, Trial, Tuned
from ppdiffusers_tome.tuning.search import Search


def tune(
    pipe: Any, call: Mapping[str, Any] | Sequence[Mapping[str, Any]], *,
    psnr: float | None = None, speedup: float | None = None, memory: float | None = None,
    config: ToMeConfig | str | Path | None = None, candidates: Sequence[ToMeConfig] | None = None,
    on_begin: Callable[[int, float], None] = lambda num_images, seconds: None,
    on_trial: Callable[[Trial], None] = lambda trial: None, **settings: Any,
) -> Tuned:  # fmt: skip
    """Find settings by trying them on ``pipe(**call)``.

    It generates about 60 images on a shared copy of the pipeline (``shared_copy``), more with several calls. The
    pipeline itself stays as it is, with its ToMe or without, and the global random generators are restored. A function
    in ``call`` that reaches the pipeline sees the idle original.

    Candidates merge tokens, skip steps (``cache``), or do both. The steps that a cache computes are chosen to fit the
    model, by two images of seeds 1 and 2 that judge nothing. All candidates are judged by the images of seed 0. A call
    that fixes its noise by ``latents`` or ``generator`` is judged by the image that its steps were chosen by. The best
    is compared with fewer unmerged steps in the same time; those are returned where they keep more.

    Args:
        pipe: any ppdiffusers pipeline whose calls return PIL images.
        call: the arguments of its call by name, ``{"prompt": "a cat", "height": 768, "width": 768}``; or several calls,
            for settings that hold for all of them.
        psnr, speedup, memory: the requirements, see ``Target``; a PSNR of 30 dB by default. With a PSNR, the fastest
            settings that meet them are chosen; without one, those with the images most similar to the unmerged ones.
        config: settings to keep, as for ``apply_tome``, except the ratio, which is searched.
        candidates: settings to try in place of the default ones.
        on_begin: called once before the search with the number of images at most and the seconds that they take, both
            estimated.
        on_trial: called with each trial after it.
        settings: settings to keep by name, as for ``apply_tome``; they replace those of ``config``. Candidates that
            they make impossible are omitted.

    Returns:
        The settings to apply, and all trials. If no settings pay, they change nothing, and ``pays`` is False.

    Raises:
        ToMeTypeError: an argument is of the wrong type, a setting is unknown, or the call returns no PIL images.
        ToMeValueError: an argument is out of range, no candidate is possible, the pipeline cannot be copied, as one
            with a cache of steps, or ``memory`` is given with Paddle 2.6, which cannot measure it.
        NothingToMergeError: nothing merges in this pipeline with any candidate.

    Example:
        >>> tuned = tune(pipe, {"prompt": "a cat"}, psnr=30, max_downsample=2)  # doctest: +SKIP
        >>> pipe.apply_tome(tuned.config)  # doctest: +SKIP
    """
    calls: list[Any] = list(call) if isinstance(call, list | tuple) and call else [call]
    if not all(isinstance(each, Mapping) for each in calls):
        raise ToMeTypeError(
            f"call={shorten_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}, or a list of such; got {describe_type(call)}"
        )
    target, steps = Target(psnr, speedup, memory), _find_num_steps(pipe, calls)
    # Before the copy, which takes time.
    families = list_candidates(collect_common_settings(config, settings), candidates, steps=steps)
    copied_pipe = shared_copy(pipe)

    def generate(arguments: Mapping[str, Any], seed: int, num_inference_steps: int | None) -> MeasuredImage:
        changes = {} if num_inference_steps is None else {"num_inference_steps": num_inference_steps}
        with keep_random_state():
            paddle.seed(seed)
            np.random.seed(seed)
            meter = Meter()
            output = copied_pipe(**{**arguments, **changes})
            seconds, peak_bytes = meter.seconds(), meter.peak_bytes()
        return MeasuredImage(read_first_image(output), seconds, peak_bytes)

    return Search(
        pipe=copied_pipe, generate=generate, images=[(each, 0) for each in calls], target=target, families=families,
        steps=steps, on_begin=on_begin, on_trial=on_trial,
    ).run()  # fmt: skip


def _find_num_steps(pipe: Any, calls: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the calls' number of steps; None if it differs or is unknown."""
    parameters, name = inspect.signature(type(pipe).__call__).parameters, "num_inference_steps"
    default = parameters[name].default if name in parameters else None
    first, *others = (call.get(name, default) for call in calls)
    has_list = any(call.get(each) is not None for call in calls for each in ("timesteps", "sigmas"))
    return first if isinstance(first, int) and all(each == first for each in others) and not has_list else None
