"""Which photograph a picture of the bundled models shows, and whether it follows edges, by plain image analysis.

Deterministic and without any network, so that prompt adherence is a fact anyone can recompute. It is itself tested on
views of the photographs, where the truth is known.
"""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, Subject, View, draw, subject_of

# A view is a crop of its photograph's square. So the picture, at each of these sizes, is slid over the square, and what
# counts is where it fits best.
_SQUARE = 64  # pixels of the square's side
_SIDES = tuple(range(48, _SQUARE + 1, 2))  # of the picture's: crops of 0.75 to 1
# Views have 0.74 or more, other subjects' views 0.29 or less, noise of any grain 0.30 or less. Below this are views
# that were blurred until colours and places alone are left.
_LEAST = 0.6
_FLAT = 2.0  # grey levels by which what is shown must vary: what is flat correlates with anything
EDGE_TOLERANCE = 6  # pixels of 512 by which an edge may miss


def likeness(picture: np.ndarray) -> dict[str, float]:
    """How like each photograph a picture is, by the subject's name: at most 1, about 0 for anything else.

    It is the mean of two correlations (cv2.TM_CCOEFF_NORMED), at the crop and the mirroring where that is highest: of
    the colours, and of the brightness's gradient in both directions, without which a blot of the right colours in the
    right places would do.

    Args:
        picture: uint8 ``[height, width, 3]``, RGB.
    """
    found = dict.fromkeys((subject.name for subject in SUBJECTS), -1.0)
    for side in _SIDES:
        small = _features(cv2.resize(picture, (side, side), interpolation=cv2.INTER_AREA))
        if min(float(part.std()) for part in small) < _FLAT:
            return dict.fromkeys(found, 0.0)
        for subject in SUBJECTS:
            for square in _squares(subject):
                fits = sum(
                    cv2.matchTemplate(whole, part, cv2.TM_CCOEFF_NORMED)
                    for whole, part in zip(square, small, strict=True)
                )
                found[subject.name] = max(found[subject.name], float(fits.max()) / len(small))
    return found


def nearest_subject(picture: np.ndarray) -> Subject | None:
    """The subject whose photograph a picture is most like; None where it is like none.

    Args:
        picture: uint8 ``[height, width, 3]``, RGB.
    """
    found = likeness(picture)
    subject = max(SUBJECTS, key=lambda subject: found[subject.name])
    return subject if found[subject.name] >= _LEAST else None


def shows_subject(picture: np.ndarray, prompt: str) -> bool | None:
    """Whether a picture shows the subject that its prompt names; None where the prompt names none.

    Args:
        picture: uint8 ``[height, width, 3]``, RGB.
        prompt: in any words.
    """
    asked = subject_of(prompt)
    return None if asked is None else nearest_subject(picture) is asked


def edges_followed(asked: np.ndarray, seen: np.ndarray) -> float:
    """The share of the asked edges' pixels that have a seen edge within ``EDGE_TOLERANCE`` pixels.

    Args:
        asked, seen: ``[512, 512]``, an edge where it is above 0; some are asked.
    """
    distance = cv2.distanceTransform((seen == 0).astype(np.uint8), cv2.DIST_L2, 5)
    return float((distance[asked > 0] <= EDGE_TOLERANCE).mean())


@cache
def _squares(subject: Subject) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """The features of a subject's whole square, as it is and mirrored."""
    drawn = [draw(subject, View(mirrored=mirrored), _SQUARE) for mirrored in (False, True)]
    return tuple(_features((square * 255).round().astype(np.uint8)) for square in drawn)


def _features(picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Colours, float32 ``[height, width, 3]``, and gradients of the brightness, ``[height, width, 2]``."""
    colours = picture.astype(np.float32)
    grey = cv2.cvtColor(colours, cv2.COLOR_RGB2GRAY)
    gradients = [cv2.Sobel(grey, cv2.CV_32F, across, 1 - across) for across in (1, 0)]
    return colours, np.stack(gradients, axis=-1)
