"""Settings chosen by trying them: on this machine, with this model, at this size.

Candidates stand in families, each from mild to strong. A family is left as soon as it misses the wanted similarity, or
has reached the wanted speed and memory: what is stronger would only be less similar.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from PIL import Image

from ppdiffusers_tome.errors import NothingToMergeError, ToMeTypeError
from ppdiffusers_tome.patching.apply import apply_config, remove_tome, tome_set_aside
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import describe_type, truncated_repr
from ppdiffusers_tome.tools.drawing.drawn import DrawnPicture
from ppdiffusers_tome.tools.measuring.measure import Meter, highest
from ppdiffusers_tome.tools.measuring.random_state import named_generators, untouched_random_state
from ppdiffusers_tome.tools.measuring.similarity import psnr_of
from ppdiffusers_tome.tuning_candidates import candidates, kept_settings
from ppdiffusers_tome.tuning_trials import Target, Trial, Tuned

Draw = Callable[[], DrawnPicture]

# Less is within what two runs of the same differ by.
_PAYS = 1.03


def tune(
    pipe: Any, call: Mapping[str, Any], *,
    psnr: float | None = None, speedup: float | None = None, memory: int | None = None,
    config: ToMeConfig | str | Path | None = None, families: Mapping[str, Sequence[ToMeConfig]] | None = None,
    tried: Callable[[Trial], None] = lambda trial: None, **settings: Any,
) -> Tuned:  # fmt: skip
    """Find settings by trying them on ``pipe(**call)``; any kind of pipeline will do, as long as it returns pictures.

    It draws some fifteen pictures. Nothing is applied: the pipeline keeps the ToMe that it had, or none, and the global
    random generators stay where they were. Random numbers are those of seed 0 in every picture.

    Args:
        pipe: a ppdiffusers pipeline.
        call: how it is called, ``{"prompt": "a cat", "height": 768, "width": 768}``.
        psnr, speedup, memory: what is wanted, see ``Target``; a PSNR of 30 dB where nothing is given. With a
            PSNR, the fastest settings that reach it are chosen; without, those that are most similar to the unmerged
            picture and reach the rest.
        config: settings to keep, as for ``apply_tome``; only the ratio is looked for.
        families: what is tried instead of ``candidates.TRIED``; each from mild to strong.
        tried: called with every trial at once.
        settings: settings to keep by name, as for ``apply_tome``, in place of those of ``config``. All that is
            tried has them; what they make impossible is not tried.

    Returns:
        Settings to apply, and what was tried. Where none pay they merge nothing, and ``pays`` is False.

    Raises:
        ToMeTypeError: an argument is of the wrong type, a setting has no such name, or the call returns no pictures.
        ToMeValueError: an argument is out of range, or with these settings there is nothing to try.
        NothingToMergeError: nothing merges in this pipeline with any of them.

    Example:
        >>> tuned = tune(pipe, {"prompt": "a cat"}, psnr=30, max_downsample=2)  # doctest: +SKIP
        >>> pipe.apply_tome(tuned.config)  # doctest: +SKIP
    """
    if not isinstance(call, Mapping) or not all(isinstance(name, str) for name in call):
        raise ToMeTypeError(
            f"call={truncated_repr(call)} must be the arguments that the pipeline is called with, by name, as in "
            f"call={{'prompt': 'a cat'}}; got {describe_type(call)}"
        )
    nothing_given = psnr is None and speedup is None and memory is None
    target = Target(30.0 if nothing_given else psnr, speedup, memory)
    states = dict(named_generators())

    def draw() -> DrawnPicture:
        paddle.seed(0)
        np.random.seed(0)
        named_generators().update(states)
        meter = Meter()
        picture = _first_image(pipe(**call))
        return DrawnPicture(picture, meter.seconds(), meter.peak_bytes(), None)

    with untouched_random_state():
        return tune_draws(pipe, [draw], target, config=config, settings=settings, families=families, tried=tried)


def tune_draws(
    pipe: Any, draws: Sequence[Draw], target: Target, *,
    config: ToMeConfig | str | Path | None = None, settings: Mapping[str, Any] | None = None,
    families: Mapping[str, Sequence[ToMeConfig]] | None = None, tried: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:  # fmt: skip
    """``tune`` by several pictures, or pictures drawn in a way of one's own.

    Args:
        pipe: the pipeline that is drawn with.
        draws: each draws one picture, the same every time, and measures the call.
        target: what is wanted.
        config, settings, families, tried: as for ``tune``.
    """
    by_family = candidates(config, settings, families)
    unmerged_config = ToMeConfig(**{**kept_settings(config, settings), "ratio": 0.0})
    with tome_set_aside(pipe):
        draws[0]()  # the first call sets things up
        unmerged = [draw() for draw in draws]
        trials = _trials(pipe, draws, unmerged, by_family, target, tried)
        chosen = _best([trial for trial in trials if trial.meets(target)], target)
        speed_up = _side_by_side(pipe, chosen, draws) if chosen else None
    pays, verdict = _verdict(chosen, speed_up, trials, target)
    return Tuned(
        chosen.config if chosen is not None and pays else unmerged_config, pays, tuple(trials), verdict,
        statistics.median(one.seconds for one in unmerged), highest(one.peak_bytes for one in unmerged),
    )  # fmt: skip


def _trials(
    pipe: Any, draws: Sequence[Draw], unmerged: Sequence[DrawnPicture], by_family: Mapping[str, Sequence[ToMeConfig]],
    target: Target, tried: Callable[[Trial], None],
) -> list[Trial]:  # fmt: skip
    """Every candidate in turn, until its family is left.

    Raises:
        NothingToMergeError: nothing merges with any of them.
    """
    trials: dict[ToMeConfig, Trial] = {}
    refusals: list[NothingToMergeError] = []
    for family, configs in by_family.items():
        for config in configs:
            if config not in trials:  # another family may have it too
                try:
                    apply_config(pipe, config)
                except NothingToMergeError as error:
                    refusals.append(error)
                    continue
                trials[config] = _trial(family, config, unmerged, [draw() for draw in draws])
                tried(trials[config])
            trial = trials[config]
            if not trial.similar_enough(target) or (target.psnr is None and trial.cheap_enough(target)):
                break
    if not trials:
        raise refusals[-1]
    return list(trials.values())


def _first_image(output: Any) -> Image.Image:
    """The first picture of a pipeline's output, RGB."""
    images = getattr(output, "images", None)
    if images is None or len(images) == 0:
        raise ToMeTypeError(
            f"tuning compares pictures, and this call returned {type(output).__name__} without images; choose settings "
            "by hand, or let the call return images"
        )
    if isinstance(images[0], Image.Image):
        return images[0].convert("RGB")
    pixels = np.asarray(images[0])
    if pixels.dtype != np.uint8:
        pixels = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")


def _trial(family: str, config: ToMeConfig, unmerged: Sequence[DrawnPicture], merged: Sequence[DrawnPicture]) -> Trial:
    pairs = list(zip(unmerged, merged, strict=True))
    return Trial(
        family, config, statistics.median(one.seconds / other.seconds for one, other in pairs),
        min(psnr_of(np.asarray(one.image), np.asarray(other.image)) for one, other in pairs),
        highest(other.peak_bytes for other in merged),
    )  # fmt: skip


def _best(trials: Sequence[Trial], target: Target) -> Trial | None:
    if target.psnr is not None:
        return max(trials, key=lambda trial: trial.speed_up, default=None)
    return max(trials, key=lambda trial: (trial.psnr, trial.speed_up), default=None)


def _side_by_side(pipe: Any, chosen: Trial, draws: Sequence[Draw]) -> float:
    """The speed-up of the chosen, side by side: unmerged pictures were long ago, and machines change their speed."""
    ratios = []
    for draw in draws:
        remove_tome(pipe)
        plain = draw().seconds
        apply_config(pipe, chosen.config)
        ratios.append(plain / draw().seconds)
    return statistics.median(ratios)


def _verdict(chosen: Trial | None, speed_up: float | None, trials: Sequence[Trial], target: Target) -> tuple[bool, str]:
    """Whether the chosen pay, and a sentence."""
    if chosen is None or speed_up is None:
        fastest = max(trials, key=lambda trial: trial.speed_up)
        most_similar = max(trials, key=lambda trial: trial.psnr)
        return False, (
            f"No settings reach the target here. The fastest tried were {fastest.speed_up:.2f}x with a PSNR of "
            f"{fastest.psnr:.1f} dB, the most similar {most_similar.psnr:.1f} dB with {most_similar.speed_up:.2f}x"
        )
    again = f"timed again, in turns with the unmerged picture ({chosen.speed_up:.2f}x when they were tried)"
    fast = f"{chosen.config.summary}, run at {speed_up:.2f}x the speed, {again}"
    if speed_up < _PAYS and target.memory is None:
        return False, (
            f"No settings give a speed-up on this machine at this size: the best that reach the target, {fast}. "
            "Attention is too small a part of the time; a larger picture has a larger speed-up"
        )
    return True, f"The chosen settings, {fast}, with a PSNR of {chosen.psnr:.1f} dB"
