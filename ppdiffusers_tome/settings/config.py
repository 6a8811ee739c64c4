"""What a user may choose, checked before anything is touched. Knows no Paddle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import FOLDER, is_preset, presets
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import describe_type, format_setting, truncated_repr
from ppdiffusers_tome.settings.validation import validate

# A ratio; or several, evenly spaced over the denoising, with straight lines between them.
RatioOrRamp = float | Sequence[float]
# The same for all levels, or by level.
Ratio = RatioOrRamp | Mapping[int, RatioOrRamp]


@dataclass(frozen=True)
class ToMeConfig:
    """Settings of token merging; names and meaning follow ``tomesd.apply_patch``.

    Nothing about one can change, so it hashes; ``dataclasses.replace`` makes another. Numbers may be numpy's or
    Paddle's; they are kept as Python's own.

    Args:
        ratio: share of the tokens to merge away, ``0 <= ratio < 1 - 1 / (sx * sy * st)``; the methods ``keys``,
            ``pool`` and ``todo`` take that value, too. 0.5 halves the tokens that attention sees (with these methods,
            its keys); 0 leaves the model exactly as it is. Several numbers are a ramp over the denoising:
            ``(0.7, 0.3)`` falls from 0.7 at pure noise to 0.3 at the finished picture. A mapping has a number or a
            ramp for each level, ``{1: 0.5, 2: 0.25}``; levels that it leaves out do not merge.
        max_downsample: merge in blocks whose grid is at most this many times smaller than the latent's: 1, 2, 4
            or 8. ``None`` means the finest level at which the model has attention (1 on Stable Diffusion 1 and 2,
            2 on SDXL).
        sx, sy: stride: one destination token is chosen in every cell of ``sx`` columns and ``sy`` rows.
        use_rand: choose it at random in each cell; otherwise always the cell's top left token.
        merge_attn: merge around self-attention (recommended).
        merge_crossattn: merge around cross-attention (seldom worth it).
        merge_mlp: merge around the feed-forward layer (seldom worth it).
        seed: which random destinations, ``0 <= seed < 2**63``. They depend on the seed, the timestep and the
            grid alone, never on Paddle's or numpy's global generators, and are the same for every image.
        tile: compare sources with the destinations of their own tile, about ``tile`` by ``tile`` tokens of the grid,
            and of one cell around it only. The cost of matching then grows with the tokens, not with their square.
            ``None`` compares all with all, as the papers do. At least the larger of ``sx`` and ``sy``; 16 is a good
            size.
        reuse_steps: make a matching and keep it for this many denoising steps; 1 makes it anew in every step.
        reuse_blocks: let all blocks on one grid use the matching of the first of them.
        method: what becomes of similar tokens, a file of ``methods``: ``tome``, ``prune`` or ``tofu``; or how keys and
            values become fewer while every query is kept: ``keys``, ``pool`` or ``todo``.
        min_similarity: never merge tokens whose cosine similarity is lower, -1 to 1; ``ratio`` is then the upper
            limit. All images of a batch merge as many tokens as the image with the fewest such. One number is read on
            the host for every matching, which makes a GPU wait.
        st: stride over the frames of a video: one destination in every cell of ``sx`` columns, ``sy`` rows and ``st``
            frames. With 1, each frame merges by itself. More keeps more detail where little moves, and costs more; it
            needs a model whose attention is over all frames at once (Wan, CogVideoX, HunyuanVideo).
        proportional: let a merged token count in attention as many times as it stands for tokens, by adding the
            logarithm of that to the scores, so that what did not merge, such as a text, does not gain weight; wherever
            attention takes a mask. None: as the method does, which is only where keys alone merge or are pooled.
        start, end: merge from ``start`` to ``end`` of the denoising only, ``0 <= start < end <= 1``.

    Progress of the denoising is the place of the step in the scheduler's list of timesteps, from 0 at pure noise; so
    img2img begins in the middle. A denoiser that is called by itself, outside its pipeline, goes by the timestep: 1000
    is pure noise and 0 the picture. A ramp, ``start`` and ``end`` read the timestep on the host, once a call of the
    denoiser.

    Raises:
        ToMeTypeError: a setting has the wrong type (also a ``TypeError``).
        ToMeValueError: a setting is out of range (also a ``ValueError``).

    Example:
        >>> ToMeConfig(ratio=0.4).to_dict()["ratio"]
        0.4

    See Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023), sections 3 and 4; for ``tile`` and the reuse,
    ToMA (Lu et al., ICML 2025); for ``proportional``, Token Merging: Your ViT But Faster (Bolya et al. 2023), section
    3; for the other methods, their files.
    """

    ratio: Ratio = 0.5
    max_downsample: int | None = None
    sx: int = 2
    sy: int = 2
    use_rand: bool = True
    merge_attn: bool = True
    merge_crossattn: bool = False
    merge_mlp: bool = False
    seed: int = 0
    tile: int | None = None
    reuse_steps: int = 1
    reuse_blocks: bool = False
    method: str = "tome"
    min_similarity: float | None = None
    start: float = 0.0
    end: float = 1.0
    st: int = 1
    proportional: bool | None = None

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in validate(given, {field.name: field.default for field in fields(self)}).items():
            object.__setattr__(self, name, value)

    def ratio_at(self, level: int, progress: float | None = None) -> float:
        """The share of the tokens to merge at a level.

        Args:
            level: 1, 2, 4 or 8.
            progress: of the denoising, 0 to 1; may be None unless ``uses_progress``.
        """
        ratio = self._ratio_of(level)
        if progress is None or not self.uses_progress:
            return ratio if isinstance(ratio, float) else ratio[0]
        if not self.start <= progress <= self.end or progress == self.end < 1:
            return 0.0
        if isinstance(ratio, float):
            return ratio
        place = progress * (len(ratio) - 1)
        before = min(int(place), len(ratio) - 2)
        return ratio[before] + (place - before) * (ratio[before + 1] - ratio[before])

    def is_ramp(self, level: int) -> bool:
        """Whether the share that merges at a level is another in every step."""
        return not isinstance(self._ratio_of(level), float)

    def highest_ratio(self, level: int) -> float:
        """The most that merges at a level at any time."""
        ratio = self._ratio_of(level)
        return ratio if isinstance(ratio, float) else max(ratio)

    @property
    def uses_group_sizes(self) -> bool:
        """Whether a merged token counts as many times as it stands for tokens, see ``proportional``."""
        return METHODS[self.method].proportional if self.proportional is None else self.proportional

    @property
    def uses_progress(self) -> bool:
        """Whether what merges depends on how far the denoising is."""
        ratios = self.ratio.values() if isinstance(self.ratio, Mapping) else [self.ratio]
        return self.start > 0 or self.end < 1 or not all(isinstance(ratio, float) for ratio in ratios)

    @property
    def levels(self) -> tuple[int, ...] | None:
        """The levels that ``ratio`` names, finest first; None where it is for all."""
        return tuple(self.ratio) if isinstance(self.ratio, Mapping) else None

    def _ratio_of(self, level: int) -> float | tuple[float, ...]:
        # As checked: a float, or a tuple of them.
        return self.ratio.get(level, 0.0) if isinstance(self.ratio, Mapping) else self.ratio  # type: ignore[return-value]

    def save(self, path: str | Path) -> None:
        """Write the settings to a JSON file that ``load`` and ``--config`` read."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ToMeConfig:
        """Read the settings from a JSON file; those that it does not name are the defaults.

        Raises:
            ToMeValueError: the file cannot be read, or what it holds is not settings.
            ToMeTypeError: as for the class; or it is not a path. What is wrong in a file is told with its path.
        """
        if not isinstance(path, str | PathLike):
            raise ToMeTypeError(
                f"{truncated_repr(path)} must be the path of a JSON file of settings, such as 'tome.json'; got {describe_type(path)}"
            )
        try:
            settings = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            # os.path says False of what is not a path at all, where Path raises: too long, or with a null byte.
            names = "" if os.path.exists(path) else f"; the presets are {', '.join(presets())}"
            raise ToMeValueError(
                f"{path} cannot be read as settings of token merging ({reason}){names}"
                f"{did_you_mean(str(path), presets())}"
            ) from error
        if not isinstance(settings, dict):
            raise ToMeValueError(
                f'{path} must hold a JSON object such as {{"ratio": 0.5}}; got {type(settings).__name__}'
            )
        try:
            return cls.from_dict(settings)
        except (ToMeTypeError, ToMeValueError) as error:
            raise type(error)(f"{path}: {error}") from None

    @classmethod
    def preset(cls, name: str) -> ToMeConfig:
        """The settings that come with this package under a name: ``quality``, ``balanced`` or ``fast``.

        Raises:
            ToMeValueError: there is none of that name.
            ToMeTypeError: it is not a name.
        """
        names = presets()
        if not isinstance(name, str):
            raise ToMeTypeError(f"{truncated_repr(name)} must be the name of a preset ({', '.join(names)}); got {describe_type(name)}")
        if name not in names:
            raise ToMeValueError(
                f"there is no preset {truncated_repr(name)}; the presets are {', '.join(names)}{did_you_mean(name, names)}"
            )
        return cls.load(FOLDER / f"{name}.json")

    @classmethod
    def named(cls, name: str | Path) -> ToMeConfig:
        """The settings of a preset, or of a JSON file; the errors are those of ``load``."""
        if not isinstance(name, str | PathLike):
            raise ToMeTypeError(
                f"{truncated_repr(name)} must be the name of a preset ({', '.join(presets())}) or the path of a JSON file of "
                f"settings; got {describe_type(name)}"
            )
        return cls.preset(str(name)) if is_preset(name) else cls.load(name)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, fit for JSON."""
        ratio: Any = self.ratio
        if isinstance(ratio, Mapping):
            ratio = {str(level): _listed(share) for level, share in ratio.items()}
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "ratio": _listed(ratio)}

    def to_json(self) -> str:
        """The settings as the text of a file that ``load`` reads."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @property
    def summary(self) -> str:
        """The ratio and whatever else is not the default, for people: ``ratio 0.7, tile 16``.

        A preset is called by its name: ``preset quality (ratio 0.75, method todo)``.
        """
        usual = type(self)().to_dict()
        differs = {name: value for name, value in self.to_dict().items() if name == "ratio" or value != usual[name]}
        words = ", ".join(f"{name} {format_setting(value)}" for name, value in differs.items())
        preset = next((name for name in presets() if type(self).preset(name) == self), None)
        return words if preset is None else f"preset {preset} ({words})"

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> ToMeConfig:
        """Build a config from plain values.

        Raises:
            ToMeTypeError: a name is not a setting of this class, or it is not a mapping of settings.
        """
        if not isinstance(settings, Mapping):
            raise ToMeTypeError(
                f'{truncated_repr(settings)} must be a mapping of settings such as {{"ratio": 0.5}}; got {describe_type(settings)}'
            )
        check_names(settings)
        ratio = settings.get("ratio")
        if isinstance(ratio, Mapping):  # JSON has no numbers for keys
            numbers = [int(level) if _is_short_number(level) else level for level in ratio]
            if len(set(numbers)) < len(numbers):
                raise ToMeValueError(f"ratio={truncated_repr(dict(ratio))} names a level twice; give each level once")
            settings = {**settings, "ratio": dict(zip(numbers, ratio.values(), strict=True))}
        return cls(**settings)


def check_names(names: Iterable[Any]) -> None:
    """All are settings.

    Raises:
        ToMeTypeError: one is not.
    """
    known = [field.name for field in fields(ToMeConfig)]
    unknown = sorted(truncated_repr(name) for name in names if not (isinstance(name, str) and name in known))
    if unknown:
        meant = did_you_mean(unknown[0].strip("'"), known)
        raise ToMeTypeError(f"unknown setting {', '.join(unknown)}; the settings are {', '.join(known)}{meant}")


def _is_short_number(level: Any) -> bool:
    return isinstance(level, str) and level.isdecimal() and len(level) < 9


def _listed(ramp: Any) -> Any:
    return list(ramp) if isinstance(ramp, tuple) else ramp
