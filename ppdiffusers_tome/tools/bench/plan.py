"""What a benchmark goes through: settings, variants of contenders, and the plan of them all. Knows no Paddle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from ppdiffusers_tome.tools.bench.contenders import CONTENDERS, NONE

# What may change between two commands that share one file of results: they only ask for more of the same.
_MAY_GROW = ("sizes", "batches", "attentions", "repeats", "memory")


@dataclass(frozen=True)
class Setting:
    """What all contenders of one table row share.

    Attributes:
        size: height and width of the picture in pixels.
        batch: rows of the UNet's batch, or pictures of one pipeline call.
        attention: one of ``attention.ATTENTIONS``.
    """

    size: int
    batch: int
    attention: str

    @property
    def name(self) -> str:
        return f"{self.size}x{self.size}, batch {self.batch}, {self.attention} attention"


@dataclass(frozen=True)
class Variant:
    """A contender at a ratio; None where the contender knows no ratio."""

    contender: str
    ratio: float | None = None

    @property
    def name(self) -> str:
        return self.contender if self.ratio is None else f"{self.contender} {self.ratio:g}"


@dataclass(frozen=True)
class Plan:
    """All that is to be measured.

    Attributes:
        what: ``unet`` or ``pipeline``.
        model: what the user called it.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        steps: denoising steps of one timed run.
        contenders, ratios: every contender that knows ratios runs at each of them.
        max_downsample: as in ``ToMeConfig``; the same for every contender.
        seed: of the inputs.
        guidance_scale: of a pipeline; None for a UNet.
        sizes, batches, attentions: the settings are all their combinations.
        repeats: timed runs of every variant; 0 times nothing.
        memory: whether peak memory is measured as well.
    """

    what: str
    model: str
    dtype: str
    steps: int
    contenders: tuple[str, ...]
    ratios: tuple[float, ...]
    max_downsample: int | None
    seed: int
    guidance_scale: float | None
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    attentions: tuple[str, ...]
    repeats: int
    memory: bool

    @property
    def settings(self) -> list[Setting]:
        return [Setting(*values) for values in product(self.sizes, self.batches, self.attentions)]

    @property
    def variants(self) -> list[Variant]:
        """Those without a ratio first, the unmerged model first of all; then ratio by ratio."""
        named = [CONTENDERS[name] for name in CONTENDERS if name in self.contenders or name == NONE]
        plain = [Variant(contender.name) for contender in named if not contender.takes_ratio]
        return plain + [
            Variant(contender.name, ratio) for ratio in self.ratios for contender in named if contender.takes_ratio
        ]

    @property
    def identity(self) -> dict[str, Any]:
        """What two commands must have in common for their results to belong into one file."""
        return {name: value for name, value in self.to_dict().items() if name not in _MAY_GROW}

    def to_dict(self) -> dict[str, Any]:
        """As plain values, as JSON gives them back."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
