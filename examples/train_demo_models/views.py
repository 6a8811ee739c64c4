"""Views of the photographs: random crops, mirror images and color shifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from photographs import Subject, photograph, prompt_of
from PIL import Image

WIDTH = 0.25  # how much the small models' views differ; narrower views give sharp outlines sooner
# A view of width 1 crops at most this fraction of the square's side,
MAX_CROP = 0.1
# and changes brightness, and red against blue, by at most these fractions.
MAX_BRIGHTNESS, MAX_WARMTH = 0.05, 0.03


@dataclass(frozen=True)
class View:
    """One way to show a subject.

    Attributes:
        side: of the crop, as a fraction of the square's side, above 0 and at most 1.
        x, y: position of the crop, 0 (left, top) to 1 (right, bottom).
        mirrored: left and right are swapped.
        brightness: the colors are multiplied by 1 + brightness.
        warmth: red is multiplied by 1 + warmth, blue by 1 - warmth.
    """

    side: float = 1.0
    x: float = 0.5
    y: float = 0.5
    mirrored: bool = False
    brightness: float = 0.0
    warmth: float = 0.0


def make_prompt(subject: Subject, mirrored: bool) -> str:
    """Return the training prompt of a view; mirrored views say so."""
    prompt = prompt_of(subject)
    return prompt.replace("a photo", "a mirrored photo") if mirrored else prompt


def make_random_view(rng: np.random.Generator, width: float = 1.0, mirror: bool = False) -> View:
    """Choose a view at random.

    Args:
        rng: the source of randomness.
        width: how much views differ: 0 is always the whole square in its original colors, 1 varies up to
            ``MAX_CROP``, ``MAX_BRIGHTNESS`` and ``MAX_WARMTH``, 3 three times as far.
        mirror: mirror every second view.
    """
    crop, x, y, brightness, warmth, mirrored = rng.random(6)
    return View(
        side=float(1 - MAX_CROP * width * crop),
        x=float(x),
        y=float(y),
        mirrored=bool(mirror and mirrored < 0.5),
        brightness=float(MAX_BRIGHTNESS * width * (2 * brightness - 1)),
        warmth=float(MAX_WARMTH * width * (2 * warmth - 1)),
    )


def make_held_out_views(count: int, width: float = 1.0, mirror: bool = False) -> list[View]:
    """Return views that training never uses: they come from a separate generator."""
    rng = np.random.default_rng(2**31 + 7)
    return [make_random_view(rng, width, mirror) for _ in range(count)]


def render_view(
    subject: Subject, view: View, size: int = 512, part: Sequence[float] = (0.0, 0.0, 1.0)
) -> np.ndarray:
    """Render a view of a subject, or a square part of the view.

    Args:
        subject, view: the photograph and its view.
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
    gains = (1 + view.brightness) * np.array([1 + view.warmth, 1, 1 - view.warmth], np.float32)
    return np.ascontiguousarray(np.clip(image * gains, 0, 1), np.float32)
