"""The judge of the bundled models' pictures: it names views of the photographs rightly, and nothing else."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, Subject, View, draw, held_out_views, prompt_of
from ppdiffusers_tome.tools.demo_model.recognition import edges_followed, likeness, nearest_subject, shows_subject

pytestmark = pytest.mark.once


def pixels(subject: Subject, view: View, size: int = 512) -> np.ndarray:
    return (draw(subject, view, size) * 255).round().astype(np.uint8)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_views_are_named_rightly(subject: Subject) -> None:
    """Twice as wide as the widest that the models are trained on, mirrored and not."""
    another = SUBJECTS[SUBJECTS.index(subject) - 1]
    for view in held_out_views(4, 2.0, mirror=True):
        picture = pixels(subject, view)
        assert nearest_subject(picture) is subject
        assert shows_subject(picture, prompt_of(subject)) is True
        assert shows_subject(picture, prompt_of(another)) is False
        assert shows_subject(picture, "a photo of a dog") is None


def test_likeness_is_far_from_that_of_others() -> None:
    for subject in SUBJECTS:
        found = likeness(pixels(subject, held_out_views(1)[0]))
        own = found.pop(subject.name)
        assert own > 0.8
        assert max(found.values()) < own / 2


@pytest.mark.parametrize("side", [2, 3, 4, 6, 8, 16, 32, 64, 512])
def test_noise_of_any_size_is_like_none(side: int) -> None:
    rng = np.random.default_rng(side)
    for _ in range(2):
        noise = rng.integers(0, 256, (side, side, 3), np.uint8)
        assert nearest_subject(cv2.resize(noise, (512, 512), interpolation=cv2.INTER_CUBIC)) is None


def test_flat_pictures_are_like_none() -> None:
    assert nearest_subject(np.full((512, 512, 3), 90, np.uint8)) is None


@pytest.mark.parametrize(("ground", "spot", "side"), [(0, (1, 0, 0), 1), (250, (0, 0, 0), 2), (90, (255, 255, 255), 1)])
def test_a_spot_on_a_flat_picture_is_like_none(ground: int, spot: tuple[int, int, int], side: int) -> None:
    picture = np.full((512, 512, 3), ground, np.uint8)
    picture[100 : 100 + side, 200 : 200 + side] = spot
    assert nearest_subject(picture) is None


def test_blots_of_the_right_colours_are_like_none() -> None:
    """Views whose outlines are gone, by blurring and by blocks of 64 pixels."""
    named = []
    for subject in SUBJECTS:
        sharp = pixels(subject, held_out_views(1)[0])
        blocks = cv2.resize(cv2.resize(sharp, (6, 6), interpolation=cv2.INTER_AREA), (512, 512))
        named += [nearest_subject(cv2.GaussianBlur(sharp, (0, 0), 64)), nearest_subject(blocks)]
        assert nearest_subject(cv2.GaussianBlur(sharp, (0, 0), 8)) is subject
    assert sum(each is not None for each in named) <= 3


def test_noise_on_a_view_leaves_it_what_it_is() -> None:
    rng = np.random.default_rng(0)
    for subject in SUBJECTS:
        noisy = pixels(subject, View()).astype(float) + rng.normal(0, 80, (512, 512, 3))
        assert nearest_subject(np.clip(noisy, 0, 255).astype(np.uint8)) is subject


def test_edges_are_followed_within_six_pixels() -> None:
    asked, seen = np.zeros((512, 512), np.uint8), np.zeros((512, 512), np.uint8)
    asked[100, 50:150] = 255
    assert edges_followed(asked, seen) == 0
    seen[106, 50:100] = 255
    assert edges_followed(asked, seen) == pytest.approx(0.5, abs=0.06)
    assert edges_followed(asked, asked) == 1
    assert edges_followed(np.roll(asked, 7, 0), asked) == 0
