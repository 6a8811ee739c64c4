"""The photographs that the bundled models draw, and views of them."""

from __future__ import annotations

import numpy as np
import pytest

from ppdiffusers_tome.tools.demo_model.photographs import (
    SUBJECTS,
    Subject,
    View,
    draw,
    held_out_views,
    photograph,
    prompt_of,
    random_view,
    subject_of,
)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_squares_lie_in_their_photographs(subject: Subject) -> None:
    left, top, side = subject.square
    width, height = photograph(subject.source).size
    assert min(left, top) >= 0
    assert left + side <= width
    assert top + side <= height


def test_draw_gives_the_same_picture_for_the_same_view() -> None:
    view = random_view(np.random.default_rng(1))
    first, second = (draw(SUBJECTS[0], view, 64) for _ in range(2))
    assert first.shape == (64, 64, 3)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, draw(SUBJECTS[0], random_view(np.random.default_rng(2)), 64))


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_part_is_what_the_whole_view_shows_there(mirrored: bool) -> None:
    view = View(side=0.9, x=0.2, y=0.7, mirrored=mirrored, lighter=0.02, warmer=-0.01)
    whole, part = draw(SUBJECTS[1], view, 128), draw(SUBJECTS[1], view, 32, (0.5, 0.25, 0.25))
    inside = (slice(4, -4), slice(4, -4))  # at its borders a part is interpolated from itself alone
    np.testing.assert_allclose(part[inside], whole[32:64, 64:96][inside], atol=0.02)


def test_width_0_is_the_whole_square_as_it_is() -> None:
    still = random_view(np.random.default_rng(3), width=0)
    np.testing.assert_array_equal(draw(SUBJECTS[2], still, 32), draw(SUBJECTS[2], View(), 32))


def test_random_view_keeps_within_its_width() -> None:
    rng = np.random.default_rng(4)
    views = [random_view(rng, width=2.0, mirror=True) for _ in range(200)]
    assert all(0.8 <= view.side <= 1 and abs(view.lighter) <= 0.1 and abs(view.warmer) <= 0.06 for view in views)
    assert 60 < sum(view.mirrored for view in views) < 140


def test_held_out_views_are_always_the_same() -> None:
    assert held_out_views(2) == held_out_views(3)[:2]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_subject_of_reads_what_prompt_of_says(subject: Subject) -> None:
    assert subject_of(prompt_of(subject)) is subject
    assert subject_of(prompt_of(subject, mirrored=True)) is subject


def test_of_two_subjects_the_first_counts() -> None:
    for prompt, name in (("a rocket above a cat", "rocket"), ("a cat below a rocket", "cat")):
        subject = subject_of(prompt)
        assert subject is not None
        assert subject.name == name


@pytest.mark.parametrize("prompt", ["", "a photo of a dog", "concatenated coffeehouses"])
def test_subject_of_finds_none_in_other_prompts(prompt: str) -> None:
    assert subject_of(prompt) is None
