"""Scenes the bundled model knows: how they are described in words and what they look like.

A scene is one or two shapes on a coloured background, for instance "a red circle above a blue square on a
green background". The same file makes the training pictures (``training``), the truth that the prompt checker is
tested on, and the prompts of the demo. It needs numpy alone.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np

SHAPES = ("circle", "square", "triangle", "star")
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.85, 0.10, 0.12),
    "orange": (0.98, 0.52, 0.06),
    "yellow": (0.97, 0.89, 0.18),
    "green": (0.12, 0.62, 0.22),
    "blue": (0.14, 0.30, 0.86),
    "purple": (0.55, 0.14, 0.70),
    "white": (0.96, 0.96, 0.96),
    "black": (0.07, 0.07, 0.08),
}
# Where the first shape lies, seen from the middle; the second lies opposite.
RELATIONS = {"above": (0, -1), "below": (0, 1), "left of": (-1, 0), "right of": (1, 0)}
ARTICLES = {"orange": "an"}
HELD_OUT_SHARE = 20  # one prompt in 20 is never used in training
_SHOWN = 60  # characters of a prompt in an error

_COLOUR, _SHAPE, _RELATION = ("|".join(words) for words in (COLOURS, SHAPES, RELATIONS))
_PROMPT = re.compile(
    rf"an? ({_COLOUR}) ({_SHAPE})(?: ({_RELATION}) an? ({_COLOUR}) ({_SHAPE}))? on an? ({_COLOUR}) background"
)


@dataclass(frozen=True)
class Shape:
    """One shape: what it is called, its colour and, when it is drawn, where it lies.

    ``x``, ``y`` (centre) and ``radius`` are fractions of the picture's side, ``angle`` is in radians.
    """

    name: str
    colour: str
    x: float = 0.5
    y: float = 0.5
    radius: float = 0.2
    angle: float = 0.0

    @property
    def words(self) -> str:
        return f"{ARTICLES.get(self.colour, 'a')} {self.colour} {self.name}"


@dataclass(frozen=True)
class Scene:
    """One or two shapes on a background; ``relation`` places the first as seen from the second."""

    shapes: tuple[Shape, ...]
    background: str
    relation: str | None = None

    @property
    def prompt(self) -> str:
        """The scene in words, as the model was taught to read it."""
        words = f" {self.relation} ".join(shape.words for shape in self.shapes)
        return f"{words} on {ARTICLES.get(self.background, 'a')} {self.background} background"

    @property
    def held_out(self) -> bool:
        """True when the prompt was kept out of training, decided by a hash of its words."""
        return zlib.crc32(self.prompt.encode()) % HELD_OUT_SHARE == 0


def parse_prompt(prompt: str) -> Scene:
    """Read a prompt of the model's little language back into a scene (positions are left at their defaults).

    Raises:
        ValueError: the prompt is not of the form
            ``a COLOUR SHAPE [RELATION a COLOUR SHAPE] on a COLOUR background``.
    """
    match = _PROMPT.fullmatch(" ".join(prompt.lower().split()))
    if match is None:
        raise ValueError(
            f"prompt {_cut_off(prompt)!r} is not in the bundled model's language; write it as "
            "'a COLOUR SHAPE on a COLOUR background' or 'a COLOUR SHAPE RELATION a COLOUR SHAPE on a COLOUR "
            f"background' with colours {', '.join(COLOURS)}; shapes {', '.join(SHAPES)}; "
            f"relations {', '.join(RELATIONS)}"
        )
    colour, shape, relation, second_colour, second_shape, background = match.groups()
    second = (Shape(second_shape, second_colour),) if relation else ()
    return Scene((Shape(shape, colour), *second), background, relation)


def _cut_off(prompt: str) -> str:
    return prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}..."


def random_scene(rng: np.random.Generator, *, spread: float = 0.04) -> Scene:
    """Draw a scene: three in four hold two shapes; colours of shapes differ from the background's.

    Args:
        rng: where the chance comes from.
        spread: how far a shape may lie from its usual place, as a fraction of the side, at most 0.1. Towards
            each other two shapes move 0.04 at most, so that they never touch.
    """
    background = str(rng.choice(list(COLOURS)))
    others = [c for c in COLOURS if c != background]
    if rng.random() < 0.25:
        x, y = 0.5 + rng.uniform(-2 * spread, 2 * spread, 2)
        return Scene((_random_shape(rng, others, x, y, rng.uniform(0.2, 0.28)),), background)
    relation = str(rng.choice(list(RELATIONS)))
    dx, dy = RELATIONS[relation]
    shapes = []
    for side in (1, -1):
        reach_x, reach_y = (min(spread, 0.04) if towards else spread for towards in (dx, dy))
        x = 0.5 + side * dx * 0.24 + rng.uniform(-reach_x, reach_x)
        y = 0.5 + side * dy * 0.24 + rng.uniform(-reach_y, reach_y)
        shapes.append(_random_shape(rng, others, x, y, rng.uniform(0.14, 0.19)))
    return Scene(tuple(shapes), background, relation)


def _random_shape(rng: np.random.Generator, colours: list[str], x: float, y: float, radius: float) -> Shape:
    return Shape(str(rng.choice(SHAPES)), str(rng.choice(colours)), float(x), float(y), float(radius),
                 float(rng.uniform(-0.2, 0.2)))


def held_out_scenes(count: int, seed: int = 0) -> list[Scene]:
    """``count`` different scenes whose prompts were never used in training."""
    rng = np.random.default_rng(seed)
    held_out: dict[str, Scene] = {}
    while len(held_out) < count:
        scene = random_scene(rng)
        if scene.held_out:
            held_out.setdefault(scene.prompt, scene)
    return list(held_out.values())


def render(scene: Scene, size: int = 512) -> np.ndarray:
    """Draw a scene with a light from the upper left, a soft shadow and smooth edges.

    Args:
        scene: what to draw.
        size: side of the square picture in pixels.

    Returns:
        float32 ``[size, size, 3]``, RGB in [0, 1].
    """
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    x, y = axis[None, :], axis[:, None]
    light = 1.08 - 0.16 * y + 0.0 * x
    picture = np.asarray(COLOURS[scene.background], np.float32) * light[..., None]
    for shape in scene.shapes:
        shadow = _distance(shape, x - 0.02, y - 0.025)
        picture *= (1.0 - 0.35 * np.clip(0.5 - shadow / 0.05, 0.0, 1.0))[..., None]
    for shape in scene.shapes:
        inside = np.clip(0.5 - _distance(shape, x, y) * size, 0.0, 1.0)[..., None]
        slope = ((shape.x - x) + (shape.y - y)) / (2.0 * shape.radius)
        lit = np.asarray(COLOURS[shape.colour], np.float32) * (1.0 + 0.22 * slope)[..., None]
        if shape.colour == "black":  # scaling black changes nothing that can be seen
            lit = lit + 0.04 * (1.0 + slope)[..., None]
        picture = picture * (1.0 - inside) + lit * inside
    return np.clip(picture, 0.0, 1.0).astype(np.float32)


def _distance(shape: Shape, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Signed distance to the shape's outline, negative inside; exact near the edges, which is all smoothing needs."""
    dx, dy = x - shape.x, y - shape.y
    cos, sin = np.float32(np.cos(shape.angle)), np.float32(np.sin(shape.angle))
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    r = shape.radius
    if shape.name == "circle":
        return np.hypot(u, v) - 0.92 * r
    if shape.name == "square":
        return np.maximum(np.abs(u), np.abs(v)) - 0.82 * r
    if shape.name == "triangle":
        v = v - 0.15 * r
        return np.maximum(0.866 * np.abs(u) - 0.5 * v, v) - 0.55 * r
    # A five-pointed star: fold the plane into one tenth of the turn, then one straight edge is left.
    tenth = np.pi / 5
    turn = np.arctan2(u, -v)
    folded = np.abs((turn + tenth) % (2 * tenth) - tenth)
    length = np.hypot(u, v)
    along, across = length * np.cos(folded), length * np.sin(folded)
    tip, notch = 1.1 * r, 0.48 * r
    edge_x, edge_y = notch * float(np.cos(tenth)) - tip, notch * float(np.sin(tenth))
    return ((along - tip) * edge_y - across * edge_x) / float(np.hypot(edge_x, edge_y))
