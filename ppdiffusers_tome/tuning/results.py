"""Targets and results of tuning. Imports no Paddle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import describe_type, to_python, truncated_repr


@dataclass(frozen=True)
class Target:
    """Requirements for the settings; None requires nothing.

    Attributes:
        psnr: the least similarity of every image to the unmerged one, in dB; at 30 dB the difference is hard to see.
        speedup: the least speed-up over the unmerged call, 1 or more.
        memory: the most bytes in use during a call.

    Raises:
        ToMeTypeError, ToMeValueError: a requirement is not such a number, or all are None.
    """

    psnr: float | None = None
    speedup: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        requirements = {name: to_python(value) for name, value in vars(self).items() if value is not None}
        if not requirements:
            raise ToMeValueError("there is no target; give at least one of psnr=30, speedup=1.5 and memory=8 * 2**30")
        for name, value in requirements.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ToMeTypeError(
                    f"target {name}={truncated_repr(value)} must be a number; got {describe_type(value)}"
                )
            # Integers may be larger than any float, so they are compared without conversion.
            if value != value or not 0 < value < math.inf or (name == "speedup" and value < 1):
                least = "1 or more" if name == "speedup" else "above 0"
                raise ToMeValueError(f"target {name}={truncated_repr(value)} must be a finite number, {least}")
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Trial:
    """Measurements of one candidate.

    Attributes:
        family, config: the candidate.
        speed_up: unmerged seconds divided by merged seconds, median over the images.
        psnr: the least over the images, in dB; infinite for identical images.
        peak_bytes: the most memory in use; None if it could not be measured.
        steps: of the denoising, if there were fewer than in the call; such a trial is for comparison and never chosen.
    """

    family: str
    config: ToMeConfig
    speed_up: float
    psnr: float
    peak_bytes: int | None
    steps: int | None = None

    def meets(self, target: Target) -> bool:
        return self.is_similar_enough(target) and self.is_cheap_enough(target)

    def is_similar_enough(self, target: Target) -> bool:
        return target.psnr is None or self.psnr >= target.psnr

    def is_cheap_enough(self, target: Target) -> bool:
        """Return True if it meets the required speed and memory."""
        fits = target.memory is None or (self.peak_bytes is not None and self.peak_bytes <= target.memory)
        return fits and (target.speedup is None or self.speed_up >= target.speedup)


@dataclass(frozen=True)
class Tuned:
    """Result of tuning.

    Attributes:
        config: the settings to apply; if ``pays`` is False, the settings to keep with ratio 0, which merges nothing.
        pays: whether ``config`` meets the target and is worth using.
        trials: all trials in their order.
        verdict: a sentence about the result, with the reason if ``pays`` is False.
        unmerged_seconds, unmerged_peak_bytes: median and maximum over the unmerged images.
    """

    config: ToMeConfig
    pays: bool
    trials: tuple[Trial, ...]
    verdict: str
    unmerged_seconds: float
    unmerged_peak_bytes: int | None
