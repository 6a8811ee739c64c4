"""The bundled model's little language, and what its scenes look like."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import cv2
import numpy as np
import pytest

from ppdiffusers_tome.tools.bundled import checker, scenes

pytestmark = pytest.mark.once


def random_scenes(count: int, seed: int = 0, **kwargs: float) -> list[scenes.Scene]:
    rng = np.random.default_rng(seed)
    return [scenes.random_scene(rng, **kwargs) for _ in range(count)]


def drawn(scene: scenes.Scene, size: int = 256) -> np.ndarray:
    return (scenes.render(scene, size) * 255).astype(np.uint8)


def test_prompt_is_read_back() -> None:
    for scene in random_scenes(100):
        read = scenes.parse_prompt(scene.prompt)
        assert read.prompt == scene.prompt
        assert [(s.name, s.colour) for s in read.shapes] == [(s.name, s.colour) for s in scene.shapes]
        assert (read.background, read.relation) == (scene.background, scene.relation)


@pytest.mark.parametrize(
    "prompt",
    ["", "a cat", "a red circle", "a red circle on a background", "a pink circle on a white background",
     "a red circle beside a blue square on a white background", "a red circle above on a white background"],
)  # fmt: skip
def test_prompt_outside_the_language_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="not in the bundled model's language; write it as") as raised:
        scenes.parse_prompt(prompt)
    with pytest.raises(ValueError, match=r"^prompt 'words words .*\.\.\.' is not") as long:
        scenes.parse_prompt("words " * 500)
    assert len(str(long.value)) < len(str(raised.value)) + 80  # no prompt is echoed whole


def test_held_out_scenes_differ_and_are_held_out() -> None:
    found = scenes.held_out_scenes(100)
    assert len({scene.prompt for scene in found}) == 100
    assert all(scene.held_out for scene in found)
    assert 0.03 < np.mean([scene.held_out for scene in random_scenes(2000)]) < 0.07


def test_render_has_the_size_and_range_asked() -> None:
    picture = scenes.render(random_scenes(1)[0], 96)
    assert picture.shape == (96, 96, 3)
    assert picture.dtype == np.float32
    assert 0 <= picture.min() < picture.max() <= 1


def test_render_shows_one_scene_at_any_size() -> None:
    scene = random_scenes(1, seed=4)[0]
    large = scenes.render(scene, 256).reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
    assert np.abs(large - scenes.render(scene, 64)).mean() < 0.01


@pytest.mark.parametrize(
    ("spread", "count"),
    [(0.1, 40), pytest.param(0.04, 150, marks=pytest.mark.sweep), pytest.param(0.1, 150, marks=pytest.mark.sweep)],
)
def test_checker_finds_what_was_drawn(spread: float, count: int) -> None:
    """The checker against the truth: drawings of which it may misjudge none."""
    for scene in random_scenes(count, seed=1, spread=spread):
        adherence = checker.check(drawn(scene), scene)
        assert adherence.complete, f"{scene.prompt}: {adherence}"


def test_checker_refuses_what_was_not_asked() -> None:
    """Each drawing against the next one's words: right only where the words happen to be the same."""
    some = random_scenes(30, seed=2)
    for shown, asked in pairwise(some):
        same = sorted((s.name, s.colour) for s in shown.shapes) == sorted((s.name, s.colour) for s in asked.shapes)
        adherence = checker.check(drawn(shown), asked)
        assert adherence.shapes == same
        assert adherence.background == (shown.background == asked.background)


def test_checker_sees_a_swapped_relation() -> None:
    above = scenes.parse_prompt("a red circle above a blue square on a green background")
    shapes = (scenes.Shape("circle", "red", 0.5, 0.74, 0.16), scenes.Shape("square", "blue", 0.5, 0.26, 0.16))
    adherence = checker.check(drawn(scenes.Scene(shapes, "green", "below")), above)
    assert adherence.colours
    assert adherence.shapes
    assert adherence.background
    assert not adherence.relation
    assert not adherence.complete


def test_checker_tells_a_wrong_outline_from_a_wrong_colour() -> None:
    asked = scenes.parse_prompt("a red circle on a green background")
    square = scenes.Scene((scenes.Shape("square", "red"),), "green")
    blue = scenes.Scene((scenes.Shape("circle", "blue"),), "green")
    assert (checker.check(drawn(square), asked).colours, checker.check(drawn(square), asked).shapes) == (True, False)
    assert (checker.check(drawn(blue), asked).colours, checker.check(drawn(blue), asked).shapes) == (False, False)


def test_checker_finds_nothing_in_noise_or_a_blank() -> None:
    asked = random_scenes(1)[0]
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    assert not checker.check(noise, asked).shapes
    assert checker.check(np.full((128, 128, 3), 255, np.uint8), asked).seen == ()


def wobbled(picture: np.ndarray, rng: np.random.Generator, wobble: float) -> np.ndarray:
    """A picture whose outlines go in and out around its middle, by ``wobble`` of the radius on average."""
    side = picture.shape[0]
    y, x = np.mgrid[:side, :side].astype(np.float32) - side / 2
    angle, radius = np.arctan2(y, x), np.hypot(x, y)
    waves = sum(rng.normal() * np.cos(waves * angle + rng.uniform(0, 2 * np.pi)) for waves in range(2, 9))
    from_where = radius * (1 + wobble * np.sqrt(2 / 7) * waves)
    map_x, map_y = ((side / 2 + from_where * turn(angle)).astype(np.float32) for turn in (np.cos, np.sin))
    return cv2.remap(picture, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


@pytest.mark.sweep  # 120 drawings each
@pytest.mark.parametrize(("wobble", "most"), [(0.04, 1), (0.08, 12)])
def test_checker_sees_through_uneven_outlines_and_leans_to_no_shape(wobble: float, most: int) -> None:
    """What a model draws is uneven. No shape may be taken for another much more often than the other way round."""
    rng = np.random.default_rng(5)
    wrong: Counter = Counter()
    for name in ("circle", "square", "triangle"):
        for _ in range(40):
            shape = scenes.Shape(name, "red", 0.5, 0.5, float(rng.uniform(0.14, 0.28)), float(rng.uniform(-0.2, 0.2)))
            picture = wobbled(scenes.render(scenes.Scene((shape,), "blue"), 256), rng, wobble)
            found, _ = checker.look((picture * 255).astype(np.uint8))
            seen = found[0].name if found else None
            wrong[name, seen] += seen != name
    assert sum(wrong.values()) <= most
    assert abs(wrong["circle", "square"] - wrong["square", "circle"]) <= 6
