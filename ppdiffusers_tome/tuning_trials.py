"""What tuning is to reach, what it tried, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import describe_type, to_python, truncated_repr


@dataclass(frozen=True)
class Target:
    """What is wanted; what is None does not matter.

    Attributes:
        psnr: the least similarity to the unmerged picture, in dB, of every picture tried. 30 is hard to tell apart.
        speedup: how many times as fast as unmerged at least; 1 or more.
        memory: the most bytes in use during a call.

    Raises:
        ToMeTypeError, ToMeValueError: one is not such a number, or all are None.
    """

    psnr: float | None = None
    speedup: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        given = {name: to_python(value) for name, value in vars(self).items() if value is not None}
        if not given:
            raise ToMeValueError("there is no target; give at least one of psnr=30, speedup=1.5 and memory=8 * 2**30")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ToMeTypeError(f"target {name}={truncated_repr(value)} must be a number; got {describe_type(value)}")
            # Whole numbers may be larger than any float, so they are compared as they are.
            if value != value or not 0 < value < math.inf or (name == "speedup" and value < 1):
                least = "1 or more" if name == "speedup" else "above 0"
                raise ToMeValueError(f"target {name}={truncated_repr(value)} must be a finite number, {least}")
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Trial:
    """What one candidate did on the pictures.

    Attributes:
        family, config: what was tried.
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
        return self.similar_enough(target) and self.cheap_enough(target)

    def similar_enough(self, target: Target) -> bool:
        return target.psnr is None or self.psnr >= target.psnr

    def cheap_enough(self, target: Target) -> bool:
        fits = target.memory is None or (self.peak_bytes is not None and self.peak_bytes <= target.memory)
        return fits and (target.speedup is None or self.speed_up >= target.speedup)


@dataclass(frozen=True)
class Tuned:
    """The result of tuning.

    Attributes:
        config: the settings to use; where none pay, those to keep with ratio 0, which merges nothing.
        pays: whether ``config`` reaches the target and is worth it.
        trials: all that was tried, in that order.
        verdict: a sentence for people; where nothing pays it says why.
        unmerged_seconds, unmerged_peak_bytes: medians and the most of the unmerged pictures.
    """

    config: ToMeConfig
    pays: bool
    trials: tuple[Trial, ...]
    verdict: str
    unmerged_seconds: float
    unmerged_peak_bytes: int | None
