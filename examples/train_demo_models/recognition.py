"""Decide which photograph an image of the small models shows, by deterministic template matching."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
from photographs import SUBJECTS, Subject, square_image

_SQUARE = 64  # side of the photograph's square in pixels, where smaller copies of the image are matched
_IMAGE_SIDES = range(48, _SQUARE + 1, 2)  # crops of 0.75 to 1
# Crops of a photograph score 0.74 or more, crops of another one at most 0.29, noise at most 0.30.
_MIN_SIMILARITY = 0.6
_MIN_DEVIATION = 2.0  # grey levels; the correlation with a flat image is meaningless


def subject_similarities(image: np.ndarray) -> dict[str, float]:
    """Return how similar an image is to each photograph, by the subject's name.

    A similarity is the mean correlation of colors and of brightness gradients at the best crop and mirroring.
    Gradients are needed because blurred areas of the right colors correlate too.

    Args:
        image: uint8 ``[height, width, 3]``, RGB.

    Returns:
        Values of at most 1, and about 0 for an unrelated image.
    """
    best = dict.fromkeys((subject.name for subject in SUBJECTS), -1.0)
    for side in _IMAGE_SIDES:
        features = _compute_features(cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA))
        if min(float(feature.std()) for feature in features) < _MIN_DEVIATION:
            return dict.fromkeys(best, 0.0)
        for subject in SUBJECTS:
            for square in _load_features(subject):
                pairs = zip(square, features, strict=True)
                scores = [cv2.matchTemplate(whole, part, cv2.TM_CCOEFF_NORMED) for whole, part in pairs]
                best[subject.name] = max(best[subject.name], float(np.mean(scores, axis=0).max()))
    return best


def nearest_subject(image: np.ndarray) -> Subject | None:
    """Return the subject that an image shows (uint8 ``[height, width, 3]``, RGB), or None."""
    similarities = subject_similarities(image)
    subject = max(SUBJECTS, key=lambda subject: similarities[subject.name])
    return subject if similarities[subject.name] >= _MIN_SIMILARITY else None


@cache
def _load_features(subject: Subject) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Load the features of the subject's square, original and mirrored."""
    square = np.asarray(square_image(subject, _SQUARE))
    return _compute_features(square), _compute_features(np.ascontiguousarray(square[:, ::-1]))


def _compute_features(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute colors ``[height, width, 3]`` and brightness gradients ``[height, width, 2]``, float32."""
    colors = image.astype(np.float32)
    grey = cv2.cvtColor(colors, cv2.COLOR_RGB2GRAY)
    gradients = [cv2.Sobel(grey, cv2.CV_32F, dx, 1 - dx) for dx in (1, 0)]
    return colors, np.stack(gradients, axis=-1)
