"""Views of the bundled photographs: random crops, mirrorings and colour shifts that the models are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ppdiffusers_tome.tools.demo_model.photographs import Subject, photograph, prompt_of

WIDTH = 0.25  # how much the views differ that the bundled models generate; narrower views give sharp outlines sooner
# A view of width 1 cuts off at most this fraction of the square's side,
MOST_CUT = 0.1
# and changes brightness, and red against blue, by at most these fractions.
MOST_LIGHTER, MOST_WARMER = 0.05, 0.03


@dataclass(frozen=True)
class View:
    """One way to show a subject.

    Attributes:
        side: of the crop, as a fraction of the square's, above 0 and at most 1.
        x, y: where the crop lies in the space it leaves, 0 (left, top) to 1.
        mirrored: left and right are swapped.
        lighter: brightness is multiplied by one more than this.
        warmer: red is multiplied by one more than this, blue by one less.
    """

    side: float = 1.0
    x: float = 0.5
    y: float = 0.5
    mirrored: bool = False
    lighter: float = 0.0
    warmer: float = 0.0


def prompt_of_view(subject: Subject, mirrored: bool) -> str:
    """Return the training prompt of a view; mirrored views say so."""
    prompt = prompt_of(subject)
    return prompt.replace("a photo", "a mirrored photo") if mirrored else prompt


def random_view(rng: np.random.Generator, width: float = 1.0, mirror: bool = False) -> View:
    """Choose a view at random.

    Args:
        rng: the source of randomness.
        width: how much views differ: 0 is always the whole square in its own colours, 1 varies as far as
            ``MOST_CUT``, ``MOST_LIGHTER`` and ``MOST_WARMER`` say, 3 three times as far.
        mirror: mirror every second view.
    """
    cut, x, y, lighter, warmer, mirrored = rng.random(6)
    return View(
        side=float(1 - MOST_CUT * width * cut),
        x=float(x),
        y=float(y),
        mirrored=bool(mirror and mirrored < 0.5),
        lighter=float(MOST_LIGHTER * width * (2 * lighter - 1)),
        warmer=float(MOST_WARMER * width * (2 * warmer - 1)),
    )


def held_out_views(count: int, width: float = 1.0, mirror: bool = False) -> list[View]:
    """Return ``count`` views that training never saw: they come from a separate generator."""
    rng = np.random.default_rng(2**31 + 7)
    return [random_view(rng, width, mirror) for _ in range(count)]


def render_view(
    subject: Subject, view: View, size: int = 512, part: Sequence[float] = (0.0, 0.0, 1.0)
) -> np.ndarray:
    """Render a view of a subject, or a square part of the view.

    Args:
        subject, view: the photograph, and how it is shown.
        size: side of the image in pixels.
        part: left, top and side of the part, as fractions of the view's side.

    Returns:
        float32 ``[size, size, 3]``, RGB in [0, 1].
    """
    whole = subject.square[2]
    side = whole * view.side
    left = subject.square[0] + (whole - side) * view.x
    top = subject.square[1] + (whole - side) * view.y
    x, y, fraction = part
    x = 1 - x - fraction if view.mirrored else x
    box = (left + x * side, top + y * side, left + (x + fraction) * side, top + (y + fraction) * side)
    resized = photograph(subject.source).resize((size, size), Image.Resampling.LANCZOS, box=box)
    image = np.asarray(resized, np.float32) / 255
    image = image[:, ::-1] if view.mirrored else image
    gains = (1 + view.lighter) * np.array([1 + view.warmer, 1, 1 - view.warmer], np.float32)
    return np.ascontiguousarray(np.clip(image * gains, 0, 1), np.float32)
