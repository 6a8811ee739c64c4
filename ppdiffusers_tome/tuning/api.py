"""``tune``: settings for the calls of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.patching.shared_copy import shared_copy
from ppdiffusers_tome.settings.bounds import to_python
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import describe_type, shorten_repr
from ppdiffusers_tome.tuning.candidates import Steps, collect_common_settings, list_candidates
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

    It generates about 70 images on a shared copy of the pipeline (``shared_copy``), more with several calls. The
    pipeline itself stays as it is, with its ToMe or without, and the global random generators are restored. A function
    in ``call`` that reaches the pipeline sees the idle original.

    Candidates merge tokens, skip steps (``cache``), or do both. The steps that a cache computes are chosen to fit the
    model, by two images of seeds 1 and 2 that judge nothing. All candidates are judged by the images of seed 0. A call
    that fixes its noise by ``latents`` or ``generator`` is judged by the image that its steps were chosen by. The best
    is compared with fewer steps in the same time, unmerged and merged; those are returned where they keep more.

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
    target, steps = Target(psnr, speedup, memory), _find_steps(pipe, calls)
    # Before the copy, which takes time.
    families = list_candidates(collect_common_settings(config, settings), candidates, steps=steps)
    try:
        copied_pipe = shared_copy(pipe)
    except ToMeValueError as error:
        raise ToMeValueError(f"tune generates with a shared copy of the pipeline; {error}") from error

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


def _check_call(call: Any) -> None:
    """Refuse what are no arguments of a pipeline that returns images."""
    if not isinstance(call, Mapping) or not all(isinstance(name, str) for name in call):
        raise ToMeTypeError(
            f"call={shorten_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}, or a list of such; got {describe_type(call)}"
        )
    if (output_type := call.get("output_type", "pil")) != "pil":
        raise ToMeTypeError(
            f"tune compares PIL images, and output_type={shorten_repr(output_type)} returns others; omit it in call"
        )


def _find_steps(pipe: Any, calls: Iterable[Mapping[str, Any]]) -> Steps | None:
    """Return the calls' steps; None if they differ or are listed."""
    parameters = inspect.signature(type(pipe).__call__).parameters

    def find_common(name: str, default: Any = None) -> Any:
        default = parameters[name].default if name in parameters else default
        first, *others = (to_python(call.get(name, default)) for call in calls)
        return None if any(other != first for other in others) else first

    number, strength = find_common("num_inference_steps"), find_common("strength", 1.0)
    has_list = any(call.get(name) is not None for call in calls for name in ("timesteps", "sigmas"))
    is_known = isinstance(number, int) and isinstance(strength, int | float) and not has_list
    return Steps(number, float(strength)) if is_known else None
