"""``tune``: settings for the calls of a pipeline."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import paddle
from PIL import Image

from ppdiffusers_tome.errors import ToMeTypeError
from ppdiffusers_tome.patching.shared_copy import shared_copy
from ppdiffusers_tome.settings.bounds import Bounds
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import describe_type, did_you_mean, shorten_repr
from ppdiffusers_tome.tuning.measurement import Clock, keep_random_state
from ppdiffusers_tome.tuning.results import Target, Trial, Tuned, conclude, list_candidates
from ppdiffusers_tome.tuning.trials import Run, try_candidates

_STEPS = Bounds(Integral, "a whole number, 1 or more, such as 20", 1, or_none=True)
_CALLBACKS = ("callback", "callback_steps", "prior_callback", "prior_callback_steps")  # of pipelines with **kwargs


def tune(
    pipe: Any, call: Mapping[str, Any] | Sequence[Mapping[str, Any]], *,
    psnr: float | None = None, speedup: float | None = None, candidates: Sequence[ToMeConfig] | None = None,
    on_trial: Callable[[Trial], object] | None = print,
) -> Tuned:  # fmt: skip
    """Find settings by trying them on ``pipe(**call)``.

    The call runs 32 times with the usual 7 candidates, as unmerged calls and the candidates take turns, once to warm up
    and in 3 rounds. A run of more than twice the seconds of the first is repeated. All have seed 0 and run on a shared
    copy: the pipeline stays as it is, with its ToMe or without, and so do the global random generators. A function in
    ``call`` that reaches the pipeline sees the original. On Ctrl-C ``on_trial`` has had what was tried.

    Args:
        pipe: any ppdiffusers pipeline whose calls return PIL images.
        call: the arguments of its call by name, ``{"prompt": "a cat", "height": 768, "width": 768}``; or several calls,
            for settings that hold for all of them. The least similar of all images counts.
        psnr, speedup: the requirements, see ``Target``. With a PSNR, the fastest settings that meet them are chosen;
            without one, those with the images most similar to the unmerged ones.
        candidates: settings to try in place of ``ratio=0.5``, the presets, fractions of the cache, and ``balanced``
            with it.
        on_trial: called, if not None, with each trial as it is measured, in every round: the unmerged calls, then the
            candidates. The numbers are medians so far.

    Raises:
        ToMeTypeError: an argument is of the wrong type, or the pipeline does not take the call, or returns no images.
        ToMeValueError: an argument is out of range, there are no candidates, or the pipeline cannot be copied.
        NothingToMergeError: nothing merges in this pipeline with any candidate.

    Example:
        >>> tuned = tune(pipe, {"prompt": "a cat"}, psnr=30)  # doctest: +SKIP
        >>> pipe.apply_tome(tuned.config)  # doctest: +SKIP
    """
    if isinstance(pipe, paddle.nn.Layer):
        raise ToMeTypeError(f"tune needs a pipeline, whose calls draw images: give that of this {type(pipe).__name__}")
    calls: list[Any] = list(call) if isinstance(call, list | tuple) and call else [call]
    target, steps = Target(psnr, speedup), [_read_steps(pipe, each) for each in calls]
    configs, copied_pipe = list_candidates(candidates, steps), shared_copy(pipe)

    def run_calls() -> Run:
        seconds, images, is_disturbed = 0.0, [], False
        for each in calls:
            with keep_random_state():
                paddle.seed(0)
                np.random.seed(0)
                clock = Clock()
                output = copied_pipe(**each)
                seconds += clock.read_seconds()
                is_disturbed = is_disturbed or clock.is_disturbed()
            images += read_images(output)
        return Run(seconds, images, is_disturbed)

    trials: dict[ToMeConfig, Trial] = {}
    for trial in try_candidates(copied_pipe, configs, run_calls, lambda config: run_calls()):
        trials[trial.config] = trial
        if on_trial is not None:
            on_trial(trial)
    return conclude(trials.values(), target, getattr(pipe, "scheduler", None))


def _read_steps(pipe: Any, call: Any) -> int | None:
    """Read a call's steps, None if unknown; refuse what would fail."""
    if not isinstance(call, Mapping):
        raise ToMeTypeError(
            f"call={shorten_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}, or a list of such; got {describe_type(call)}"
        )
    # A subclass may pass on arguments that only its base class names; defaults are those of the subclass.
    functions = [vars(cls)["__call__"] for cls in reversed(type(pipe).__mro__) if "__call__" in vars(cls)]
    parameters = {name: each for run in functions for name, each in inspect.signature(run).parameters.items()}
    unknown = [name for name in call if name not in (*parameters, *_CALLBACKS)]
    if unknown and "output_type" in parameters:  # else a function of the user has taken the place of the pipeline's
        suggestion = did_you_mean(unknown[0], parameters)
        raise ToMeTypeError(f"call has {unknown[0]!r}, which {type(pipe).__name__} does not take{suggestion}")
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    arguments = {**defaults, **call}
    if (output_type := arguments.get("output_type", "pil")) != "pil":
        raise ToMeTypeError(f"tune compares PIL images, and the call has output_type={output_type!r}; give 'pil'")
    return _STEPS.check("num_inference_steps", arguments.get("num_inference_steps"))


def read_images(output: Any) -> list[np.ndarray]:
    """Return a pipeline's PIL images as uint8 ``[height, width, 3]``."""
    images = getattr(output, "images", output[0] if isinstance(output, tuple) else output)
    images = images if isinstance(images, list | tuple) and images else [images]
    for image in images:
        if not isinstance(image, Image.Image):
            found = describe_type(image)
            raise ToMeTypeError(f"tune compares PIL images, and this call returned a {found}; choose settings by hand")
    return [np.asarray(image.convert("RGB")) for image in images]
