"""What is in a picture of the bundled model: shapes, colours, places and background, found by plain image analysis.

Deterministic and without any network, so that prompt adherence is a fact anyone can recompute. It is itself tested on
rendered scenes, where the truth is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from ppdiffusers_tome.tools.bundled.scenes import COLOURS, RELATIONS, Scene

# Light and shadow scale a colour by about these factors (scenes.render).
_SHADES = (0.6, 0.75, 0.9, 1.0, 1.1, 1.22)
_SMALLEST_SHARE = 0.006  # of the picture; the smallest star covers 1.6%


@dataclass(frozen=True)
class SeenShape:
    """A shape seen in a picture; ``x`` and ``y`` are its centre as fractions of the picture's sides."""

    name: str
    colour: str
    x: float
    y: float


@dataclass(frozen=True)
class Adherence:
    """How far a picture shows a scene.

    Attributes:
        colours: as many shapes as asked were found, of the asked colours, whatever their outlines.
        shapes: the same, and of the asked names.
        relation: ``shapes``, and the first lies where the relation puts it (True when none is asked).
        background: the background has the asked colour.
        seen: all shapes in it.
    """

    colours: bool
    shapes: bool
    relation: bool
    background: bool
    seen: tuple[SeenShape, ...]

    @property
    def complete(self) -> bool:
        """All that was asked is there."""
        return self.shapes and self.relation and self.background


def look(picture: np.ndarray) -> tuple[list[SeenShape], str]:
    """Find the shapes of a picture and the colour of its background.

    Args:
        picture: uint8 ``[height, width, 3]``, RGB.

    Returns:
        the shapes, largest first, and the background's colour name.
    """
    side = 256
    small = cv2.resize(picture, (side, side), interpolation=cv2.INTER_AREA)
    labels = _colour_labels(small)
    border = np.concatenate([labels[:6].ravel(), labels[-6:].ravel(), labels[:, :6].ravel(), labels[:, -6:].ravel()])
    ground = int(np.bincount(border, minlength=len(COLOURS)).argmax())
    seen: list[tuple[float, SeenShape]] = []
    for index, colour in enumerate(COLOURS):
        if index == ground:
            continue
        # Opening drops the thin rims of mixed colour around an edge, closing heals specks inside a shape.
        mask = cv2.morphologyEx((labels == index).astype(np.uint8), cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
        mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
        for contour in cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]:
            area = cv2.contourArea(contour)
            if area < _SMALLEST_SHARE * side * side:
                continue
            x, y = contour[:, 0].mean(axis=0) / side
            seen.append((area, SeenShape(_shape_name(contour, area), colour, float(x), float(y))))
    seen.sort(key=lambda pair: -pair[0])
    return [shape for _, shape in seen], list(COLOURS)[ground]


def check(picture: np.ndarray, scene: Scene) -> Adherence:
    """Compare a picture with the scene that it was asked to show.

    Args:
        picture: uint8 ``[height, width, 3]``, RGB.
        scene: what was asked; positions and sizes inside it do not count.
    """
    seen, ground = look(picture)
    asked = [(shape.name, shape.colour) for shape in scene.shapes]
    colours = sorted(shape.colour for shape in seen) == sorted(colour for _, colour in asked)
    shapes = sorted((shape.name, shape.colour) for shape in seen) == sorted(asked)
    relation = shapes and (scene.relation is None or _related(seen, asked[0], scene.relation))
    return Adherence(colours, shapes, relation, ground == scene.background, tuple(seen))


def _colour_labels(picture: np.ndarray) -> np.ndarray:
    """The nearest colour of every pixel, ``[height, width]``, whatever its light: distance in CIE Lab over shades."""
    palette = np.array(list(COLOURS.values()), np.float32)
    shades = np.clip(palette[:, None] * np.array(_SHADES, np.float32)[None, :, None], 0, 1)
    targets = cv2.cvtColor(shades, cv2.COLOR_RGB2LAB)
    pixels = cv2.cvtColor(picture.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    distance = np.stack([
        np.min([((pixels - target) ** 2).sum(-1) for target in shades_of_one], axis=0) for shades_of_one in targets
    ])
    return distance.argmin(axis=0)


def _shape_name(contour: np.ndarray, area: float) -> str:
    """The ideal shape of the same area and centre that covers it best; a star is the one that is far from convex.

    Covering weighs the whole outline. Hulls of the kinds (the smallest circle, rectangle and triangle around it) would
    hang on its outermost points: one bump makes the smallest circle around a disc much too large.
    """
    hull = cv2.convexHull(contour)
    if area / max(cv2.contourArea(hull), 1.0) < 0.78:
        return "star"
    points = contour[:, 0].astype(np.float64)
    seen = cv2.moments(contour)
    centre = np.array([seen["m10"], seen["m01"]]) / seen["m00"]
    # Large enough for all, and small enough to be quick.
    scale = 96 / (2 * np.abs(points - centre).max() + 1)
    canvas = (points - centre) * scale + 64
    shape = _filled(canvas)
    covered = {
        name: max(_cover(shape, ideal) for ideal in _ideals(corners, shape.sum()))
        for name, corners in (("circle", 64), ("square", 4), ("triangle", 3))
    }
    return max(covered, key=lambda name: covered[name])


def _ideals(corners: int, area: float) -> list[np.ndarray]:
    """Regular polygons of an area in the middle of a canvas, turned in steps of 5 degrees."""
    radius = np.sqrt(2 * area / (corners * np.sin(2 * np.pi / corners)))
    turns = np.radians(np.arange(0, max(1, 360 // corners), 5))
    corner = 2 * np.pi * np.arange(corners) / corners
    return [_filled(64 + radius * np.stack([np.cos(corner + t), np.sin(corner + t)], axis=1)) for t in turns]


def _filled(polygon: np.ndarray) -> np.ndarray:
    """A polygon ``[points, 2]`` drawn on a canvas of 128x128."""
    canvas = np.zeros((128, 128), np.uint8)
    return cv2.fillPoly(canvas, [np.round(polygon * 16).astype(np.int32)], 1, shift=4)


def _cover(one: np.ndarray, other: np.ndarray) -> float:
    """What two drawings share, of all that either covers."""
    return float((one & other).sum() / (one | other).sum())


def _related(seen: list[SeenShape], asked_first: tuple[str, str], relation: str) -> bool:
    """True when one of the two seen may be what was asked for first, and lies where the relation says."""
    dx, dy = RELATIONS[relation]
    for first, second in (seen, seen[::-1]):
        x, y = first.x - second.x, first.y - second.y
        if (first.name, first.colour) == asked_first and dx * x + dy * y > abs(dy * x + dx * y):
            return True
    return False
