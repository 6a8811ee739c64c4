"""Candidates of tuning, their trials, and the best. Imports no Paddle."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from numbers import Real
from operator import attrgetter
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.settings.bounds import check_type, setting
from ppdiffusers_tome.settings.config import UNMERGED, ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS, NOISE_HISTORIES, explain_noise_history

# The most advised first, as a run may be stopped.
CANDIDATES = (
    ToMeConfig(0.0, cache=0.2), *map(ToMeConfig.preset, PRESETS), ToMeConfig(0.5),
    replace(ToMeConfig.preset("balanced"), cache=0.2), ToMeConfig(0.0, cache=0.3), ToMeConfig(0.0, cache=0.5),
)  # fmt: skip
LEAST_SPEEDUP = 1.03  # two runs of the same settings differ by less


def list_candidates(candidates: Iterable[ToMeConfig] | None, steps: Iterable[int | None]) -> list[ToMeConfig]:
    """List the settings to try, without caches by default at few steps."""
    if candidates is None:
        has_no_cache = any(number is not None and number < MIN_STEPS for number in steps)
        return [config for config in CANDIDATES if not (config.cache and has_no_cache)]
    accepted = "settings, as in candidates=[ToMeConfig(0.3), ToMeConfig(0.5)]"
    check_type(candidates, Iterable, accepted, "candidates: ")
    configs = list(candidates)
    for each in configs:
        check_type(each, ToMeConfig, accepted, "candidates: ")
    if not configs:
        raise ToMeValueError("there is nothing to try: candidates has no settings")
    return list(dict.fromkeys(configs))


@dataclass(frozen=True)
class Target:
    """Requirements for the settings; None requires nothing.

    Attributes:
        psnr: the least similarity of an image to the unmerged one, in dB, at most 100. If nothing is required, it is 30
            dB, where the difference is hard to see.
        speedup: the least speed-up over the unmerged calls, 1 or more.
    """

    psnr: float | None = setting(None, Real, "a number of dB above 0, at most 100, such as 30", math.ulp(0.0), 100)
    speedup: float | None = setting(None, Real, "a finite number, 1 or more", 1, sys.float_info.max)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = each.metadata["bounds"].check(f"target {each.name}", getattr(self, each.name))
            object.__setattr__(self, each.name, value)
        if (self.psnr, self.speedup) == (None, None):
            object.__setattr__(self, "psnr", 30.0)

    def compute_shortfall(self, trial: "Trial") -> float:
        """Compute the larger fraction by which a trial misses a requirement."""
        pairs = ((self.psnr, trial.psnr), (self.speedup, trial.speedup))
        return max(0.0, *(1 - reached / required for required, reached in pairs if required is not None))


@dataclass(frozen=True)
class Trial:
    """Measurements of one candidate.

    Attributes:
        config: the settings.
        seconds: of all calls, the median over the rounds.
        speedup: the seconds of the unmerged calls, their median, divided by these.
        psnr: the least over all images, in dB; infinite where all are identical.
        is_disturbed: True where other programs took cores in most rounds, so that seconds and speed-up mislead.
    """

    config: ToMeConfig
    seconds: float
    speedup: float
    psnr: float
    is_disturbed: bool = False

    @property
    def name(self) -> str:
        """The settings in a few words."""
        return "unmerged" if self.config == UNMERGED else self.config.summary

    def __str__(self) -> str:
        similarity = f"{self.psnr:.1f} dB" if math.isfinite(self.psnr) else "identical"
        disturbed = ", while the machine was busy" if self.is_disturbed else ""
        return f"{self.name}: {self.seconds:.2f} s, {self.speedup:.2f}x the speed, {similarity}{disturbed}"


@dataclass(frozen=True)
class Tuned:
    """Result of tuning.

    Attributes:
        best: the best of the trials that are faster and reach the target; None if there are none.
        trials, unmerged: all trials in their order, and the measurements of the unmerged calls.
        verdict: a sentence about the result; without a best, with the nearest and what would help.
    """

    best: Trial | None
    trials: tuple[Trial, ...]
    unmerged: Trial
    verdict: str

    @property
    def config(self) -> ToMeConfig:
        """The settings to apply; without a best, ``ToMeConfig(0)``, which changes nothing."""
        return UNMERGED if self.best is None else self.best.config


def conclude(trials: Iterable[Trial], target: Target, scheduler: Any = None) -> Tuned:
    """Choose the best trial, and explain the choice.

    With a target PSNR the best is the fastest, else the most similar. The first trial is that of the unmerged calls;
    the pipeline's scheduler may be the reason of a missed target.
    """
    unmerged, *others = trials
    # Where a round was cut short, the unmerged calls have run once more than some, and have another median.
    others = [replace(trial, speedup=unmerged.seconds / trial.seconds) for trial in others]
    faster = [trial for trial in others if trial.speedup >= LEAST_SPEEDUP]
    rank = attrgetter("psnr", "speedup") if target.psnr is None else attrgetter("speedup")
    best = max((trial for trial in faster if target.compute_shortfall(trial) == 0), key=rank, default=None)
    verdict = f"The best is {best}"
    if not faster:
        verdict = "Nothing that was tried is faster on this machine at this size; larger images save more"
    elif best is None:
        class_name, remedy = type(scheduler).__name__, "give a lower target, or other settings"
        if class_name in NOISE_HISTORIES:
            remedy = explain_noise_history(class_name)
        nearest = min(faster, key=target.compute_shortfall)
        verdict = f"Nothing faster reaches the target. The nearest is {nearest}; {remedy}"
    if any(trial.is_disturbed for trial in others):
        verdict += "; the machine was busy meanwhile, so measure again when it is idle"
    return Tuned(best, tuple(others), unmerged, verdict)
