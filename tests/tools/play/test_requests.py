"""What the page accepts of a form and an upload, and which words it has for the rest."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.class_labels import ClassLabels
from ppdiffusers_tome.tools.play import i18n
from ppdiffusers_tome.tools.play.i18n import WORDS, choose_language, translate
from ppdiffusers_tome.tools.play.requests import (
    MAX_SEED,
    RefusedError,
    check_number,
    check_prompt,
    check_tome,
    read_photo,
)
from tools.play.conftest import encode_image

LABELS = ClassLabels({"cat": 0, "dog": 1}, 2, 64)


def refusal(check: Any, *given: Any) -> str:
    with pytest.raises(RefusedError) as refused:
        check(*given)
    values = {**refused.value.values, "field": "Field"}
    assert any("\u4e00" <= letter <= "\u9fff" for letter in translate("zh", refused.value.reason, **values))
    return translate("en", refused.value.reason, **values)


def test_prompts_and_classes() -> None:
    assert check_prompt("  a cat \n", None) == "a cat"
    assert check_prompt("dog", LABELS) == "dog"
    assert "empty" in refusal(check_prompt, "  \n", None)
    assert "2001 characters" in refusal(check_prompt, "a" * 2001, None)
    assert "horse" in refusal(check_prompt, "horse", LABELS)


def test_numbers_are_in_range() -> None:
    assert check_number({"seed": MAX_SEED}, "seed", 0, MAX_SEED, 1) == MAX_SEED
    for value in (None, "", "7", True, float("nan"), float("inf"), [], -1, 2**53):
        assert "give a number from 0" in refusal(check_number, {"seed": value}, "seed", 0, MAX_SEED, 1)
    assert "multiple of 8, such as 96" in refusal(check_number, {"width": 100}, "width", 8, 1000, 8)


def test_token_merging_is_a_preset_or_custom_and_never_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"ratio": 0.5}')
    form = {"preset": "own", "method": "prune", "ratio": 0.3, "cache": 0.4}
    assert check_tome(form) == ToMeConfig(method="prune", ratio=0.3, cache=0.4)
    assert check_tome(form | {"preset": "balanced", "cache": 0}) == ToMeConfig.named("balanced")
    for changes, words in (
        ({"preset": str(path)}, "there is no preset"), ({"preset": None}, "do not work"),
        ({"ratio": 0.75}, "do not work"), ({"ratio": 0}, "nothing to compare"),
        ({"cache": 0.8}, "give a number from 0 to 0.7"),
    ):  # fmt: skip
        assert words in refusal(check_tome, form | changes)


def test_photos_are_read_upright_in_rgb_and_not_larger_than_needed(bright_square: Image.Image) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_photo(encode_image(bright_square, "JPEG", exif=exif)).size == bright_square.size[::-1]
    assert read_photo(encode_image(Image.new("L", (4096, 1024)))).size == (2048, 512)
    deep = Image.fromarray(np.asarray(bright_square.convert("L")).astype(np.uint16) * 257)
    for content in (encode_image(deep), encode_image(bright_square.convert("CMYK"), "TIFF")):
        photo = read_photo(content)
        assert photo.mode == "RGB"
        assert np.asarray(photo)[45, 60].min() > 200


@pytest.mark.parametrize("content", [b"", b"text\n", b"<svg/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", "cut off"])
def test_files_that_are_no_images_are_refused(content: Any, bright_square: Image.Image) -> None:
    content = encode_image(bright_square)[:-200] if content == "cut off" else content
    assert "cannot be read as an image; choose one of PNG" in refusal(read_photo, content)


def test_images_of_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    assert "13000x13000 pixels; choose one of at most 50" in refusal(
        read_photo, encode_image(Image.new("1", (13000, 13000)))
    )


def test_both_languages_have_all_words_with_the_same_placeholders() -> None:
    def placeholders(text: str) -> set[str | None]:
        return {name for _, name, _, _ in Formatter().parse(text) if name}

    english, chinese = WORDS["en"], WORDS["zh"]
    assert english.keys() == chinese.keys()
    folder = Path(i18n.__file__).parent
    source = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    for key, text in english.items():
        assert placeholders(text) == placeholders(chinese[key]), key
        assert source.count(f'"{key}"') + source.count(f"'{key}'") > 2, f"{key} is used"


def test_the_language_is_the_one_the_browser_prefers() -> None:
    accepted = ("", "zh-CN,zh;q=0.9,en;q=0.8", "en;q=0.2,zh-TW;q=0.7", "fr", "x" * 9**5)
    assert list(map(choose_language, accepted)) == ["en", "zh", "zh", "en", "en"]
