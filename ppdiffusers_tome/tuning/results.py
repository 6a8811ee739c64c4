"""Targets and trials of tuning, and their choice. Imports no Paddle."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.bounds import setting
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tuning.measurement import find_highest_peak

if TYPE_CHECKING:
    import numpy as np

LEAST_SPEED_UP = 1.03  # two runs of the same settings differ by less
_LEAST, _MOST = math.ulp(0.0), sys.float_info.max  # of numbers that are above 0 and finite


@dataclass(frozen=True)
class Target:
    """Requirements for the settings; None requires nothing.

    Attributes:
        psnr: the least similarity of every image to the unmerged one, in dB; at 30 dB, the default where nothing else
            is required, the difference is hard to see. At most 100, above which images are identical.
        speedup: the least speed-up over the unmerged call, 1 or more.
        memory: the most bytes in use during a call.

    Raises:
        ToMeTypeError, ToMeValueError: a requirement is not such a number.
    """

    psnr: float | None = setting(None, Real, "a number of dB above 0, at most 100, such as 30", _LEAST, 100)
    speedup: float | None = setting(None, Real, "a finite number, 1 or more", 1, _MOST)
    memory: float | None = setting(None, Real, "a finite number above 0", _LEAST, _MOST)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = each.metadata["bounds"].check(f"target {each.name}", getattr(self, each.name))
            object.__setattr__(self, each.name, value)
        if (self.psnr, self.speedup, self.memory) == (None, None, None):
            object.__setattr__(self, "psnr", 30.0)

    def allows_memory(self, peak_bytes: int | None) -> bool:
        """Return True unless a peak exceeds the required memory."""
        return self.memory is None or (peak_bytes is not None and peak_bytes <= self.memory)


@dataclass(frozen=True)
class Trial:
    """Measurements of one candidate.

    Attributes:
        family, config: the candidate.
        speed_up: unmerged seconds divided by merged seconds, median over the images.
        psnr: the least over the images, in dB; infinite for identical images.
        peak_bytes: the most memory in use; None if it could not be measured.
        steps: of the denoising, if there were fewer than in the call.
    """

    family: str
    config: ToMeConfig
    speed_up: float
    psnr: float
    peak_bytes: int | None
    steps: int | None = None

    @property
    def name(self) -> str:
        """The settings, or the number of unmerged steps, if there were fewer."""
        return self.config.summary if self.steps is None else f"{format_count(self.steps, 'step')} unmerged"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; an infinite PSNR, which JSON lacks, is null."""
        psnr = self.psnr if math.isfinite(self.psnr) else None
        return {"family": self.family, "config": self.config.to_dict(), "speed_up": self.speed_up, "psnr_db": psnr,
                "peak_bytes": self.peak_bytes, "steps": self.steps}  # fmt: skip

    def meets(self, target: Target) -> bool:
        return self.is_similar_enough(target) and self.is_cheap_enough(target)

    def is_similar_enough(self, target: Target) -> bool:
        return target.psnr is None or self.psnr >= target.psnr

    def is_cheap_enough(self, target: Target) -> bool:
        """Return True if it meets the required speed and memory."""
        return target.allows_memory(self.peak_bytes) and (target.speedup is None or self.speed_up >= target.speedup)


@dataclass(frozen=True)
class Tuned:
    """Result of tuning.

    Attributes:
        config: the settings to apply; ``ToMeConfig(0)``, which changes nothing, if ``pays`` is False.
        pays: whether ``config`` meets the target and is worth using: it is faster, or keeps to memory that the unmerged
            call exceeds.
        trials: all trials in their order.
        verdict: a sentence about the result, with the reason if ``pays`` is False.
        unmerged_seconds, unmerged_peak_bytes: median and maximum over the unmerged images.
        steps: of the denoising, where fewer unmerged ones keep more in the same time; None for the steps of the call.
    """

    config: ToMeConfig
    pays: bool
    trials: tuple[Trial, ...]
    verdict: str
    unmerged_seconds: float
    unmerged_peak_bytes: int | None
    steps: int | None = None


@dataclass(frozen=True)
class MeasuredImage:
    """An image and the cost of its call."""

    pixels: np.ndarray  # uint8 [height, width, 3]
    seconds: float
    peak_bytes: int | None  # None if it could not be measured


def rank_trials(trials: Sequence[Trial], target: Target) -> list[Trial]:
    """List the trials that meet the target, the best first."""
    rank = attrgetter("psnr", "speed_up") if target.psnr is None else attrgetter("speed_up")
    return sorted((trial for trial in trials if trial.meets(target)), key=rank, reverse=True)


def conclude(
    target: Target, unmerged: Sequence[MeasuredImage], trials: Sequence[Trial], best: Trial | None,
    fewer_steps: Trial | None,
) -> Tuned:  # fmt: skip
    """Choose between the best trial and fewer steps, and describe the result.

    The best of ``trials`` was repeated beside unmerged images of the same minute, and meets the target there.
    """
    seconds = statistics.median(image.seconds for image in unmerged)
    peak_bytes = find_highest_peak(image.peak_bytes for image in unmerged)
    other, all_trials = fewer_steps, [*trials, *([] if fewer_steps is None else [fewer_steps])]
    if best is not None and fewer_steps is not None and fewer_steps.psnr > best.psnr:
        is_as_fast = fewer_steps.speed_up * LEAST_SPEED_UP >= best.speed_up
        if is_as_fast and fewer_steps.meets(target):
            best, other = fewer_steps, best
    pays = best is not None and (best.speed_up >= LEAST_SPEED_UP or not target.allows_memory(peak_bytes))
    config, steps = (best.config, best.steps) if best is not None and pays else (ToMeConfig(0.0), None)
    verdict = describe_result(trials, best, other, pays)
    return Tuned(config, pays, tuple(all_trials), verdict, seconds, peak_bytes, steps)


def describe_result(trials: Sequence[Trial], best: Trial | None, other: Trial | None, pays: bool) -> str:
    """Describe the best trial, and what its time gives otherwise."""
    if best is None:
        fastest, closest = (max(trials, key=attrgetter(name)) for name in ("speed_up", "psnr"))
        return (
            f"No settings reach the target here. The fastest tried were {fastest.speed_up:.2f}x with a PSNR of "
            f"{fastest.psnr:.1f} dB, the most similar {closest.psnr:.1f} dB with {closest.speed_up:.2f}x"
        )
    result = f"{best.name}: {best.speed_up:.2f}x the speed, side by side with the unmerged image"
    if not pays:
        return f"Nothing that reaches the target is faster on this machine at this size. The best is {result}"
    beside = "" if other is None else f"; {other.name}: {other.speed_up:.2f}x with {other.psnr:.1f} dB"
    return f"The best is {result}, with a PSNR of {best.psnr:.1f} dB{beside}"
