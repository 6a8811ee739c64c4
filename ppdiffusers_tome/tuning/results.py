"""Targets and results of tuning. Imports no Paddle."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import format_count, setting, to_python

if TYPE_CHECKING:
    import numpy as np


_LEAST, _MOST = math.ulp(0.0), sys.float_info.max  # of numbers that are above 0 and finite


@dataclass(frozen=True)
class Target:
    """Requirements for the settings; None requires nothing.

    Attributes:
        psnr: the least similarity of every image to the unmerged one, in dB; at 30 dB, the default where nothing else
            is required, the difference is hard to see.
        speedup: the least speed-up over the unmerged call, 1 or more.
        memory: the most bytes in use during a call.

    Raises:
        ToMeTypeError, ToMeValueError: a requirement is not such a number.
    """

    psnr: float | None = setting(None, Real, "a finite number above 0", _LEAST, _MOST)
    speedup: float | None = setting(None, Real, "a finite number, 1 or more", 1, _MOST)
    memory: float | None = setting(None, Real, "a finite number above 0", _LEAST, _MOST)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = each.metadata["bounds"].check(f"target {each.name}", to_python(getattr(self, each.name)))
            object.__setattr__(self, each.name, value)
        if (self.psnr, self.speedup, self.memory) == (None, None, None):
            object.__setattr__(self, "psnr", 30.0)


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
        """The number of steps, if there were fewer, and the settings."""
        settings = "nothing merged" if self.steps is not None and self.config.ratio == 0 else self.config.summary
        return settings if self.steps is None else f"{format_count(self.steps, 'step')} with {settings}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; an infinite PSNR, which JSON lacks, is null."""
        psnr = self.psnr if math.isfinite(self.psnr) else None
        return {"family": self.family, "config": self.config.to_dict(), "speed_up": self.speed_up, "psnr_db": psnr,
                "peak_bytes": self.peak_bytes, "steps": self.steps}  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        """Restore a trial from ``to_dict``."""
        psnr = math.inf if values["psnr_db"] is None else values["psnr_db"]
        config = ToMeConfig.from_dict(values["config"])
        return cls(values["family"], config, values["speed_up"], psnr, values["peak_bytes"], values["steps"])

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
        config: the settings to apply; if ``pays`` is False, the settings to keep with ratio 0 and every step computed,
            which change nothing.
        pays: whether ``config`` meets the target and is worth using.
        trials: all trials in their order.
        verdict: a sentence about the result, with the reason if ``pays`` is False.
        unmerged_seconds, unmerged_peak_bytes: median and maximum over the unmerged images.
        steps: of the denoising, where fewer of them with ``config`` keep more than all else in the same time; None for
            the steps of the call.
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


@dataclass(frozen=True)
class ChosenSteps:
    """Computed steps that fit a model."""

    steps: tuple[int, ...]  # from 0
    slopes: tuple[float, ...]  # the share of the slope that each step of the denoising follows if it is skipped
    psnr: float  # of the image as expected from single errors, in dB

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChosenSteps:
        """Restore chosen steps from plain values."""
        return cls(tuple(values["steps"]), tuple(values["slopes"]), values["psnr"])

    def apply_to(self, config: ToMeConfig, scheduler: str | None) -> ToMeConfig:
        """Return settings with these steps; another slope than the default stays."""
        slope = self.slopes if config.cache_slope == ToMeConfig().cache_slope else config.cache_slope
        return replace(
            config, cache=self.steps, cache_slope=slope, cache_steps=len(self.slopes), cache_scheduler=scheduler
        )
