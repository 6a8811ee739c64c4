"""What a person may ask the page for, and in which words the rest is refused, in both languages."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.generation.class_labels import ClassLabels
from ppdiffusers_tome.tools.play import requests
from ppdiffusers_tome.tools.play.i18n import LANGUAGES, language_of
from ppdiffusers_tome.tools.play.i18n.chinese import CHINESE
from ppdiffusers_tome.tools.play.i18n.english import ENGLISH
from ppdiffusers_tome.tools.play.requests import (
    MOST_SEED,
    OWN,
    RefusedError,
    prompt_from,
    scale,
    side,
    tome_from,
    whole_number,
)

LABELS = ClassLabels({"cat": 0, "dog": 1}, 2, 64)
NO_NUMBERS: list[Any] = [None, "", "7", True, math.nan, math.inf, [], {}, 10**400]


def words_of(ask: Callable[..., Any], *given: Any) -> str:
    """What is said in English of something that is refused; Chinese has words for it too."""
    with pytest.raises(RefusedError) as refused:
        ask(*given)
    assert any("\u4e00" <= letter <= "\u9fff" for letter in CHINESE.refusal(refused.value))
    return ENGLISH.refusal(refused.value)


@pytest.mark.parametrize("given", ["", "  \n", None])
def test_a_blank_prompt_is_refused(given: Any) -> None:
    assert words_of(prompt_from, given, None) == "The prompt is blank; say what to draw."
    assert "No class is chosen" in words_of(prompt_from, given, LABELS)


def test_prompts_are_taken_without_the_space_around_them() -> None:
    assert prompt_from("  a cat \n", None) == "a cat"
    assert prompt_from("dog", LABELS) == "dog"


def test_what_is_no_class_or_no_prompt_is_refused() -> None:
    assert "no class “horse”" in words_of(prompt_from, "horse", LABELS)
    assert "has 2001 characters" in words_of(prompt_from, "a" * 2001, None)


@pytest.mark.parametrize("given", [*NO_NUMBERS, -1, 1.5, MOST_SEED + 1])
def test_seeds_out_of_range_are_refused(given: Any) -> None:
    assert words_of(whole_number, "seed", given, 0, MOST_SEED).startswith("Seed ")


def test_seeds_that_browsers_hold_exactly_are_taken() -> None:
    assert whole_number("seed", MOST_SEED, 0, MOST_SEED) == MOST_SEED
    assert whole_number("seed", 3.0, 0, MOST_SEED) == 3  # as a browser may send it


@pytest.mark.parametrize(("given", "nearest"), [(100, 96), (0, 8), (-8, 8), (65.5, 64), (None, 8), ("64", 8)])
def test_sizes_that_no_vae_makes_are_refused_with_the_nearest_that_it_does(given: Any, nearest: int) -> None:
    assert words_of(side, "height", given).endswith(f"give a multiple of 8, such as {nearest}.")


@pytest.mark.parametrize("given", [*NO_NUMBERS, -0.1, 101])
def test_scales_out_of_range_are_refused(given: Any) -> None:
    assert words_of(scale, "guidance", given).startswith("Guidance scale ")


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_itself(name: str) -> None:
    assert tome_from(name, "tome", 0.5) == ToMeConfig.named(name)


def test_settings_of_ones_own() -> None:
    assert tome_from(OWN, "prune", 0.3) == ToMeConfig(method="prune", ratio=0.3)


@pytest.mark.parametrize(
    ("preset", "method", "ratio", "said"),
    [
        (OWN, "tome", 0.75, "do not work"), (OWN, "tome", 0, "nothing to compare"), (OWN, "x", 0.5, "do not work"),
        (OWN, "tome", "a", "Ratio a"), ("/etc/passwd", "tome", 0.5, "do not work"), (None, None, None, "do not work"),
    ],
)  # fmt: skip
def test_settings_that_do_not_work_are_refused(preset: Any, method: Any, ratio: Any, said: str) -> None:
    assert said in words_of(tome_from, preset, method, ratio)


def test_a_preset_is_never_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"ratio": 0.5}')
    assert "there is no preset" in words_of(tome_from, str(path), "tome", 0.5)


@pytest.mark.parametrize("name", [field.name for field in fields(ENGLISH) if field.type == "str"])
def test_both_languages_fill_in_the_same(name: str) -> None:
    def filled(text: str) -> set[str]:
        return {place for _, place, _, _ in Formatter().parse(text) if place is not None}

    english, chinese = getattr(ENGLISH, name), getattr(CHINESE, name)
    assert english.strip()
    assert chinese.strip()
    assert filled(english) == filled(chinese)


def test_every_refusal_has_words_and_all_words_of_refusals_are_used() -> None:
    source = "".join(path.read_text() for path in Path(inspect.getfile(requests)).parent.glob("*.py"))
    for field in fields(ENGLISH):
        if field.name.startswith("refused_"):
            assert f'"{field.name.removeprefix("refused_")}"' in source, field.name
        else:
            assert f".{field.name}" in source or field.name.startswith("odd_"), field.name
    assert set(ENGLISH.fields) == set(CHINESE.fields)


@pytest.mark.parametrize(
    ("accepted", "code"),
    [
        ("", "en"), ("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-US,en;q=0.9,zh;q=0.1", "en"), ("fr;q=0.9", "en"),
        ("de, zh-Hant-TW;q=0.5, en;q=0.4", "zh"), ("en;q=0.2,zh;q=0.7", "zh"), (";;;,,zh;q=1.2.3", "en"),
        ("x" * 9**5, "en"),
    ],
)  # fmt: skip
def test_the_language_is_the_browsers(accepted: str, code: str) -> None:
    assert language_of(accepted) == code
    assert code in LANGUAGES
