"""``ToMeConfig``: validated, immutable settings, read and written as JSON."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.bounds import check_type, setting
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.text import did_you_mean, format_setting, shorten_repr
from ppdiffusers_tome.settings.validation import check_settings

if TYPE_CHECKING:
    from ppdiffusers_tome.merging.grid import Grid

# A number, or a ramp of several, evenly spaced over the denoising and interpolated linearly.
Ratio = float | Sequence[float]
_STRIDE = "a whole number of tokens, 1 or more, such as 2"
_PART = "a number, a fraction of the denoising, 0 <= start < end <= 1"


@dataclass(frozen=True)
class ToMeConfig:
    """Immutable, hashable settings of token merging.

    ``apply_tome`` documents every setting and takes a config in place of them; ``dataclasses.replace`` makes another.
    Numbers may be numpy's or Paddle's and are kept as Python's own.

    Raises:
        ToMeTypeError: a setting has the wrong type (also a ``TypeError``).
        ToMeValueError: a setting is out of range, or conflicts with another (also a ``ValueError``).

    Example:
        >>> ToMeConfig(ratio=0.4, tile=16).summary
        'ratio 0.4, tile 16'
    """

    ratio: Ratio = 0.5
    max_downsample: int | None = setting(
        None, Integral, "1, 2, 4, 8 or None (the finest level of the model)", among=(1, 2, 4, 8)
    )
    sx: int = setting(2, Integral, _STRIDE, 1)
    sy: int = setting(2, Integral, _STRIDE, 1)
    use_rand: bool = setting(True)
    merge_attn: bool = setting(True)
    merge_crossattn: bool = setting(False)
    merge_mlp: bool = setting(False)
    seed: int = setting(0, Integral, "a whole number from 0 to 2**63 - 1", 0, 2**63 - 1)
    tile: int | None = setting(
        None, Integral, "a whole number of tokens, such as 16, or None (compare all with all)", 1
    )
    reuse_steps: int = setting(1, Integral, "a whole number of denoising steps, 1 (no reuse) or more, such as 4", 1)
    method: str = setting("tome", str, f"one of {', '.join(map(repr, METHODS))}", among=tuple(METHODS))
    start: float = setting(0.0, Real, _PART, 0, 1)
    end: float = setting(1.0, Real, _PART, 0, 1)
    st: int = setting(1, Integral, "a whole number of frames, 1 or more, such as 2", 1)
    cache: float = setting(0.0, Real, "the fraction of steps to skip, 0 <= cache < 1", 0, math.nextafter(1, 0))

    def __new__(cls, *_: Any, **settings: Any) -> ToMeConfig:
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in settings if name not in known]:  # Python's own error suggests nothing
            names, suggestion = ", ".join(map(repr, unknown)), did_you_mean(unknown[0], known)
            raise ToMeTypeError(f"unknown setting {names}; the settings are {', '.join(known)}{suggestion}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in check_settings(fields(self), vars(self)).items():
            object.__setattr__(self, name, value)

    def num_merged(self, grid: Grid, progress: float | None = None) -> int:
        """Count the tokens that merge in one frame, or in all.

        It is all frames with a stride over them (``st`` above 1). An image is one frame. For ``progress`` see
        ``ratio_at``.

        Example:
            >>> from ppdiffusers_tome.merging.grid import Grid
            >>> ToMeConfig(ratio=0.5).num_merged(Grid(height=64, width=64))
            2048
        """
        return (grid if self.st > 1 else grid.frame).num_merged(self.ratio_at(progress))

    def ratio_at(self, progress: float | None = None) -> float:
        """Compute the fraction to merge at a progress of the denoising.

        ``progress`` is from 0 to 1, or None unless ``uses_progress``.
        """
        ramp = self._ramp
        if progress is None:
            return ramp[0]
        if not self.start <= progress <= self.end or progress == self.end < 1:
            return 0.0
        position = progress * (len(ramp) - 1)
        left = int(position)
        right = min(left + 1, len(ramp) - 1)
        return ramp[left] + (position - left) * (ramp[right] - ramp[left])

    @property
    def highest_ratio(self) -> float:
        """The highest ratio over the denoising."""
        return max(self._ramp)

    @property
    def _ramp(self) -> tuple[float, ...]:
        """The ramp of the ratio, of one entry where it is constant."""
        return self.ratio if isinstance(self.ratio, tuple) else (self.ratio,)

    @property
    def changes_nothing(self) -> bool:
        """True where a pipeline is the unmerged one."""
        return self.ratio == 0 and not self.cache

    @property
    def uses_group_sizes(self) -> bool:
        """True where the method weights merged keys by group size."""
        return METHODS[self.method].uses_group_sizes

    @property
    def uses_progress(self) -> bool:
        """True where the ratio depends on the progress of the denoising."""
        return self.start > 0 or self.end < 1 or len(self._ramp) > 1

    @property
    def shares_steps(self) -> bool:
        """True where a step of the denoising uses results of earlier ones."""
        return self.reuse_steps > 1 or bool(self.cache)

    @property
    def differs_by_step(self) -> bool:
        """True where not all steps of the denoising compute the same."""
        return self.shares_steps or self.uses_progress

    @property
    def summary(self) -> str:
        """The preset's name, if any, the ratio and all changed settings."""
        defaults = ToMeConfig().to_dict()
        changes = {name: value for name, value in self.to_dict().items() if name == "ratio" or value != defaults[name]}
        text = ", ".join(f"{name} {format_setting(value)}" for name, value in changes.items())
        preset = self.preset_name
        return text if preset is None else f"preset {preset} ({text})"

    @property
    def preset_name(self) -> str | None:
        """The preset whose ratio, method and stride these are; None without."""
        merging = operator.attrgetter("ratio", "method", "sx", "sy")
        return next((name for name in PRESETS if merging(ToMeConfig.preset(name)) == merging(self)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, fit for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    def to_json(self) -> str:
        """Return the text of a file that ``load`` reads."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the settings to a JSON file for ``load`` and ``--config``."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ToMeConfig:
        """Read the settings from a JSON file; others have their defaults.

        Raises:
            ToMeTypeError, ToMeValueError: as for the class; or the file cannot be read or does not hold settings. Every
                error of a file begins with its path.
        """
        check_type(path, str | PathLike, "the path of a JSON file of settings, such as 'tome.json'")
        try:
            settings = json.loads(Path(path).read_bytes())  # in UTF-8, UTF-16 or UTF-32
        except (OSError, ValueError) as error:
            raise ToMeValueError(
                f"{path} cannot be read as settings of token merging ({getattr(error, 'strerror', None) or error}); "
                f"the presets are {', '.join(PRESETS)}{did_you_mean(str(path), PRESETS)}"
            ) from error
        if not isinstance(settings, dict):
            raise ToMeValueError(
                f'{path} must hold a JSON object such as {{"ratio": 0.5}}; got {type(settings).__name__}'
            )
        try:
            return cls(**settings)
        except (ToMeTypeError, ToMeValueError) as error:
            error.args = (f"{path}: {error}",)
            raise

    @classmethod
    def preset(cls, name: str) -> ToMeConfig:
        """Return a preset: ``quality`` or ``balanced``."""
        check_type(name, str, f"the name of a preset ({', '.join(PRESETS)})")
        if name not in PRESETS:
            raise ToMeValueError(
                f"there is no preset {shorten_repr(name)}; the presets are {', '.join(PRESETS)}"
                f"{did_you_mean(name, PRESETS)}"
            )
        return cls(**PRESETS[name])


UNMERGED = ToMeConfig(0.0)  # with which a pipeline is as without ToMe
