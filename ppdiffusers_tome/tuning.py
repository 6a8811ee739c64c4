"""Settings chosen by trying them: on this machine, with this model, at this size.

Candidates stand in families, each from mild to strong. A family is left as soon as it misses the wanted likeness, or
has reached the wanted speed and memory: what is stronger would only be less like.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.applying import apply_config, remove_tome
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.errors import NothingToMergeError, ToMeTypeError, ToMeValueError
from ppdiffusers_tome.measure import Measured, highest, measured
from ppdiffusers_tome.quality import compare_pictures
from ppdiffusers_tome.random_state import untouched_random_state

Draw = Callable[[], Measured[Any]]

# What is tried. Methods that ask fewer keys keep the picture best (docs/fidelity.md); merging also works where blocks
# have no layers for keys.
FAMILIES: dict[str, tuple[ToMeConfig, ...]] = {
    "todo": (
        ToMeConfig(0.5, method="todo"),
        ToMeConfig.preset("quality"),
        ToMeConfig.preset("balanced"),
        ToMeConfig(15 / 16, method="todo", sx=4, sy=4),
        ToMeConfig.preset("fast"),
    ),
    "tofu": (ToMeConfig(0.3, method="tofu"), ToMeConfig(0.5, method="tofu"), ToMeConfig(0.7, method="tofu")),
    "tome": (ToMeConfig(0.3), ToMeConfig(0.5), ToMeConfig(0.7)),
}
# Less is within what two runs of the same differ by.
_PAYS = 1.03


@dataclass(frozen=True)
class Target:
    """What is wanted; what is None does not matter.

    Attributes:
        psnr: the least likeness to the unmerged picture, in dB, of every picture tried. 30 is hard to tell apart.
        speedup: how many times as fast as unmerged at least; 1 or more.
        memory: the most bytes in use during a call.

    Raises:
        ToMeTypeError, ToMeValueError: one is no such number, or all are None.
    """

    psnr: float | None = None
    speedup: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            raise ToMeValueError("there is no target; give at least one of psnr=30, speedup=1.5 and memory=8 * 2**30")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ToMeTypeError(f"target {name}={value!r} must be a number; got {type(value).__name__}")
            if not np.isfinite(value) or value <= 0 or (name == "speedup" and value < 1):
                least = "1 or more" if name == "speedup" else "above 0"
                raise ToMeValueError(f"target {name}={value} must be a finite number, {least}")


@dataclass(frozen=True)
class Trial:
    """What one candidate did.

    Attributes:
        family, config: who it is.
        speed_up: the unmerged seconds divided by its own, median over the pictures.
        psnr: the least over the pictures, in dB; infinite where they are identical.
        peak_bytes: the most memory in use; None where it could not be measured.
    """

    family: str
    config: ToMeConfig
    speed_up: float
    psnr: float
    peak_bytes: int | None

    def meets(self, target: Target) -> bool:
        return self.like_enough(target) and self.cheap_enough(target)

    def like_enough(self, target: Target) -> bool:
        return target.psnr is None or self.psnr >= target.psnr

    def cheap_enough(self, target: Target) -> bool:
        fits = target.memory is None or (self.peak_bytes is not None and self.peak_bytes <= target.memory)
        return fits and (target.speedup is None or self.speed_up >= target.speedup)


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        config: the settings to use; None where none pay.
        trials: all that was tried, in that order.
        verdict: a sentence for people.
        unmerged_seconds, unmerged_peak_bytes: medians and the most of the unmerged pictures.
    """

    config: ToMeConfig | None
    trials: tuple[Trial, ...]
    verdict: str
    unmerged_seconds: float
    unmerged_peak_bytes: int | None


def tune(
    pipe: Any, draws: Sequence[Draw], target: Target, *,
    families: Mapping[str, Sequence[ToMeConfig]] | None = None, tried: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:  # fmt: skip
    """Try settings until the target is met as well as can be.

    Args:
        pipe: the pipeline that is drawn with; it is unmerged afterwards.
        draws: each draws one picture, the same every time, and measures the call.
        target: what is wanted. With a likeness, the fastest settings that reach it are chosen; without, those that are
            most like the unmerged pictures and reach the rest.
        families: what is tried instead of ``FAMILIES``.
        tried: told of every trial at once.

    Raises:
        NothingToMergeError: nothing merges in this pipeline with any of the settings.
    """
    trials: list[Trial] = []
    try:
        remove_tome(pipe)
        draws[0]()  # the first call sets things up
        unmerged = [draw() for draw in draws]
        refusals: list[NothingToMergeError] = []
        for family, configs in (families or FAMILIES).items():
            for config in configs:
                try:
                    apply_config(pipe, config)
                except NothingToMergeError as error:
                    refusals.append(error)
                    continue
                trial = _trial(family, config, unmerged, [draw() for draw in draws])
                trials.append(trial)
                tried(trial)
                if not trial.like_enough(target) or (target.psnr is None and trial.cheap_enough(target)):
                    break
        if not trials:
            raise refusals[-1]
        chosen = _best([trial for trial in trials if trial.meets(target)], target)
        speed_up = _again(pipe, chosen, draws) if chosen else None
    finally:
        remove_tome(pipe)
    seconds = statistics.median(one.seconds for one in unmerged)
    keep, verdict = _verdict(chosen, speed_up, trials, target)
    return Tuned(keep, tuple(trials), verdict, seconds, highest(one.peak_bytes for one in unmerged))


def tune_call(pipe: Any, call: Mapping[str, Any], target: Target, **given: Any) -> Tuned:
    """``tune`` on ``pipe(**call)``, whatever kind of pipeline it is, as long as it returns ``images``.

    Random numbers are those of seed 0 in every call; the global generators are put back afterwards.

    Raises:
        ToMeTypeError: the call returns no images.
    """

    def draw() -> Measured[Any]:
        paddle.seed(0)
        np.random.seed(0)
        return measured(lambda mark: _first_image(pipe(**call)))

    with untouched_random_state():
        return tune(pipe, [draw], target, **given)


def _first_image(output: Any) -> np.ndarray:
    """The first picture of a pipeline's output, uint8 ``[height, width, 3]``."""
    images = getattr(output, "images", None)
    if images is None or len(images) == 0:
        raise ToMeTypeError(
            f"tuning compares pictures, and this call returned {type(output).__name__} without images; choose settings "
            "by hand, or let the call return images"
        )
    image = np.asarray(images[0])
    return image if image.dtype == np.uint8 else (np.clip(image, 0, 1) * 255).round().astype(np.uint8)


def _trial(family: str, config: ToMeConfig, unmerged: Sequence[Measured], merged: Sequence[Measured]) -> Trial:
    pairs = list(zip(unmerged, merged, strict=True))
    return Trial(
        family, config, statistics.median(one.seconds / other.seconds for one, other in pairs),
        min(compare_pictures(np.asarray(one.result), np.asarray(other.result)).psnr for one, other in pairs),
        highest(other.peak_bytes for other in merged),
    )  # fmt: skip


def _best(trials: Sequence[Trial], target: Target) -> Trial | None:
    if target.psnr is not None:
        return max(trials, key=lambda trial: trial.speed_up, default=None)
    return max(trials, key=lambda trial: (trial.psnr, trial.speed_up), default=None)


def _again(pipe: Any, chosen: Trial, draws: Sequence[Draw]) -> float:
    """The speed-up of the chosen, side by side: unmerged pictures were long ago, and machines change their speed."""
    ratios = []
    for draw in draws:
        remove_tome(pipe)
        plain = draw().seconds
        apply_config(pipe, chosen.config)
        ratios.append(plain / draw().seconds)
    return statistics.median(ratios)


def _verdict(
    chosen: Trial | None, speed_up: float | None, trials: Sequence[Trial], target: Target
) -> tuple[ToMeConfig | None, str]:
    if chosen is None or speed_up is None:
        fastest, likest = max(trials, key=lambda t: t.speed_up), max(trials, key=lambda t: t.psnr)
        return None, (
            f"No settings reach the target here. The fastest tried were {fastest.speed_up:.2f}x with a PSNR of "
            f"{fastest.psnr:.1f} dB, the most alike {likest.psnr:.1f} dB with {likest.speed_up:.2f}x"
        )
    if speed_up < _PAYS and target.memory is None:
        return None, (
            f"No settings pay on this machine at this size: the best that reach the target run at {speed_up:.2f}x the "
            "speed. Attention is too small a part of the time; a larger picture has more to gain"
        )
    return chosen.config, f"The chosen settings run at {speed_up:.2f}x the speed with a PSNR of {chosen.psnr:.1f} dB"
