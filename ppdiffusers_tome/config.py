"""What a user may choose, checked before anything is touched. Knows no Paddle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError

LEVELS = (1, 2, 4, 8)


@dataclass(frozen=True)
class ToMeConfig:
    """Settings of token merging; names and meaning follow ``tomesd.apply_patch``.

    Args:
        ratio: share of the tokens to merge away, ``0 <= ratio < 1 - 1 / (sx * sy)``. 0.5 halves the tokens that
            attention sees; 0 leaves the model exactly as it is.
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
        tile: compare sources with the destinations of their own tile only, about ``tile`` by ``tile`` tokens of the
            grid. The cost of matching then grows with the tokens, not with their square. ``None`` compares all with
            all, as the papers do. At least the larger of ``sx`` and ``sy``; 16 is a good size.
        reuse_steps: make a matching and keep it for this many denoising steps; 1 makes it anew in every step.
        reuse_blocks: let all blocks on one grid use the matching of the first of them.

    Raises:
        ToMeTypeError: a setting has the wrong type (also a ``TypeError``).
        ToMeValueError: a setting is out of range (also a ``ValueError``).

    Example:
        >>> ToMeConfig(ratio=0.4).to_dict()["ratio"]
        0.4

    See Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023), sections 3 and 4; for ``tile`` and the reuse,
    ToMA (Lu et al., ICML 2025).
    """

    ratio: float = 0.5
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

    def __post_init__(self) -> None:
        for name in ("use_rand", "merge_attn", "merge_crossattn", "merge_mlp", "reuse_blocks"):
            if not isinstance(getattr(self, name), bool):
                raise ToMeTypeError(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("sx", "sy"):
            _require_integer(name, getattr(self, name), "a whole number of tokens, 1 or more, such as 2")
            if getattr(self, name) < 1:
                raise ToMeValueError(f"{name}={getattr(self, name)} must be 1 or more; the usual stride is 2")
        if self.sx * self.sy == 1:
            raise ToMeValueError(
                "sx=1 and sy=1 make every token a destination, so nothing could merge; use a stride such as sx=2, sy=2"
            )
        self._check_ratio()
        if self.max_downsample is not None:
            _require_integer("max_downsample", self.max_downsample, "1, 2, 4, 8 or None")
            if self.max_downsample not in LEVELS:
                raise ToMeValueError(
                    f"max_downsample={self.max_downsample} must be 1, 2, 4, 8 or None (the finest level of the model)"
                )
        if not (self.merge_attn or self.merge_crossattn or self.merge_mlp):
            raise ToMeValueError(
                "merge_attn, merge_crossattn and merge_mlp are all False, so nothing would merge; "
                "set at least merge_attn=True, or call remove_tome() to go back to the plain model"
            )
        _require_integer("seed", self.seed, "a whole number from 0 to 2**63 - 1")
        if not 0 <= self.seed < 2**63:
            raise ToMeValueError(f"seed={self.seed} must be from 0 to 2**63 - 1")
        self._check_tile()
        _require_integer("reuse_steps", self.reuse_steps, "a whole number of denoising steps, 1 or more")
        if self.reuse_steps < 1:
            raise ToMeValueError(f"reuse_steps={self.reuse_steps} must be 1 (no reuse) or more, such as 4")
        # Plain Python numbers, whatever came (numpy's, say), so that a config compares and serialises as itself.
        object.__setattr__(self, "ratio", float(self.ratio))
        for name in ("sx", "sy", "seed", "reuse_steps", "max_downsample", "tile"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))

    def _check_ratio(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, Real):
            raise ToMeTypeError(
                f"ratio={self.ratio!r} must be a number, the share of tokens to merge, such as 0.5; "
                f"got {type(self.ratio).__name__}"
            )
        limit = 1 - 1 / (self.sx * self.sy)
        if not math.isfinite(self.ratio) or not 0 <= self.ratio < limit:
            remedy = "raise the ratio to 0 or more" if self.ratio < 0 else "lower the ratio or enlarge the stride"
            remedy = remedy if math.isfinite(self.ratio) else "give a finite number such as 0.5"
            raise ToMeValueError(
                f"ratio={self.ratio} must be at least 0 and below {limit:g} for a {self.sx}x{self.sy} stride; {remedy}"
            )

    def _check_tile(self) -> None:
        if self.tile is None:
            return
        _require_integer("tile", self.tile, "a whole number of tokens, such as 16, or None (compare all with all)")
        if self.tile < max(self.sx, self.sy):
            raise ToMeValueError(
                f"tile={self.tile} must be at least {max(self.sx, self.sy)} for a {self.sx}x{self.sy} stride, so that "
                "a tile holds a destination; 16 is a good size, and None compares all with all"
            )

    def save(self, path: str | Path) -> None:
        """Write the settings to a JSON file that ``load`` and ``--config`` read."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ToMeConfig:
        """Read the settings from a JSON file; those that it does not name are the defaults.

        Raises:
            ToMeValueError: the file cannot be read, or what it holds is not settings.
            ToMeTypeError: as for the class.
        """
        try:
            settings = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ToMeValueError(f"{path} cannot be read as settings of token merging: {error}") from error
        if not isinstance(settings, dict):
            raise ToMeValueError(
                f'{path} must hold a JSON object such as {{"ratio": 0.5}}; got {type(settings).__name__}'
            )
        return cls.from_dict(settings)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, fit for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> ToMeConfig:
        """Build a config from plain values.

        Raises:
            ToMeTypeError: a name is not a setting of this class.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise ToMeTypeError(f"unknown setting {', '.join(map(repr, unknown))}; the settings are {', '.join(known)}")
        return cls(**settings)


def _require_integer(name: str, value: Any, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ToMeTypeError(f"{name}={value!r} must be {wanted}; got {type(value).__name__}")
