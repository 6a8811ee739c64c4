"""What a person asks the page for, checked before anything is drawn. Knows neither Paddle nor gradio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.class_labels import ClassLabels
from ppdiffusers_tome.tools.generation.settings import MAX_SEED, SIZE_MULTIPLE

if TYPE_CHECKING:
    from PIL import Image

# Browsers hold whole numbers exactly up to this one, and a seed that changes on its way would draw another picture.
MOST_SEED = min(MAX_SEED, 2**53 - 1)
MOST_STEPS = 200  # or one person could keep all others waiting for hours
MOST_LETTERS = 2000  # of a prompt
_MOST_GUIDANCE = 100
OWN = "own"  # settings of one's own, in place of a preset's


class RefusedError(Exception):
    """Something that the page cannot do, with the reason to be said in the person's language.

    Args:
        reason: a field of ``Words`` that begins with ``refused_``, without that.
        values: what stands in its places; ``field`` is a name of ``Words.fields``.
    """

    def __init__(self, reason: str, **values: Any) -> None:
        super().__init__(reason, values)
        self.reason, self.values = reason, values


@dataclass(frozen=True)
class Guide:
    """A picture whose edges guide a ControlNet.

    Attributes:
        photo: in RGB, of any size.
        low, high: thresholds of Canny.
        scale: how strongly the edges guide.
    """

    photo: Image.Image
    low: float
    high: float
    scale: float


@dataclass(frozen=True)
class Wanted:
    """A picture, however its tokens merge: two that are equal look the same without token merging.

    Attributes:
        prompt: what to draw; of a DiTPipeline a class.
        negative_prompt: what to keep out; None where there is none.
        seed, steps, guidance_scale: as in ppdiffusers.
        height, width: in pixels.
        guide: None for a picture from the prompt alone.
    """

    prompt: str
    negative_prompt: str | None
    seed: int
    height: int
    width: int
    steps: int
    guidance_scale: float
    guide: Guide | None = None


@dataclass(frozen=True)
class Order:
    """All that one press of the button asks for.

    Attributes:
        wanted: the picture.
        tome: settings of token merging.
        with_map: whether to show which tokens merged, too, which draws it once more.
    """

    wanted: Wanted
    tome: ToMeConfig
    with_map: bool


def prompt_from(given: Any, labels: ClassLabels | None) -> str:
    """A prompt, or with ``labels`` a class.

    Raises:
        RefusedError: it is blank or too long, or there is no such class.
    """
    prompt = str(given or "").strip()
    if not prompt:
        raise RefusedError("no_prompt" if labels is None else "no_class")
    if len(prompt) > MOST_LETTERS:
        raise RefusedError("long_prompt", letters=len(prompt), most=MOST_LETTERS)
    if labels is not None:
        try:
            labels.find_class(prompt)
        except ToMeError as error:
            raise RefusedError("unknown_class", given=prompt[:80], detail=error) from error
    return prompt


def whole_number(field: str, given: Any, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``.

    Raises:
        RefusedError: it is not.
    """
    value = _number(given)
    if value is None or not value.is_integer() or not least <= value <= most:
        raise RefusedError("whole_number", field=field, given=_said(given), least=f"{least:,}", most=f"{most:,}")
    return int(value)


def side(field: str, given: Any) -> int:
    """A height or width in pixels.

    Raises:
        RefusedError: it is none that a VAE can make.
    """
    value = _number(given)
    if value is None or value < SIZE_MULTIPLE or value % SIZE_MULTIPLE:
        nearest = SIZE_MULTIPLE if value is None else max(SIZE_MULTIPLE, round(value / SIZE_MULTIPLE) * SIZE_MULTIPLE)
        raise RefusedError("size", field=field, given=_said(given), multiple=SIZE_MULTIPLE, nearest=nearest)
    return int(value)


def scale(field: str, given: Any, most: float = _MOST_GUIDANCE) -> float:
    """A number from 0 to ``most``.

    Raises:
        RefusedError: it is not.
    """
    value = _number(given)
    if value is None or not 0 <= value <= most:
        raise RefusedError("scale", field=field, given=_said(given), most=f"{most:g}")
    return value


def tome_from(preset: Any, method: Any, ratio: Any) -> ToMeConfig:
    """Settings of token merging: a preset, or with ``OWN`` a method and a ratio.

    Raises:
        RefusedError: they merge nothing or do not go together.
    """
    try:
        config = ToMeConfig(method=str(method), ratio=scale("ratio", ratio, 1)) if preset == OWN else None
        config = config or ToMeConfig.preset(preset)  # never named(), which reads files
    except ToMeError as error:
        raise RefusedError("settings", detail=error) from error
    if config.ratio == 0:
        raise RefusedError("nothing_merges")
    return config


def guide_from(photo: Image.Image, low: Any, high: Any, strength: Any) -> Guide:
    """What a ControlNet is guided by.

    Raises:
        RefusedError: thresholds or strength are out of range.
    """
    thresholds = scale("low", low, 1000), scale("high", high, 1000)
    if thresholds[0] > thresholds[1]:
        raise RefusedError("thresholds", low=_said(low), high=_said(high))
    return Guide(photo, *thresholds, scale("strength", strength, 10))


def _number(given: Any) -> float | None:
    """A number that a browser or another program sent; None where it is none."""
    if isinstance(given, bool) or not isinstance(given, int | float) or abs(given) > 2**64:
        return None
    return float(given) if math.isfinite(given) else None


def _said(given: Any) -> str:
    return "-" if given is None or given == "" else str(given)[:40]
