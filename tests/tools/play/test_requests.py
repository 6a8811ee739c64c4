"""What the page accepts of a form and an upload, and which words it has for the rest."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.settings.config import ToMeConfig
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

FORM = {"preset": "own", "method": "prune", "ratio": 0.3, "cache": 0.4, "width": 64}


def refusal(check: Any, *given: Any) -> str:
    with pytest.raises((RefusedError, ToMeError)) as refused:
        check(*given)
    return translate("en", refused.value.reason, **{**refused.value.values, "field": "Field"}) if isinstance(
        refused.value, RefusedError
    ) else str(refused.value)  # fmt: skip


def test_fields_are_in_range() -> None:
    assert check_prompt("  a cat \n") == "a cat"
    assert "0 characters" in refusal(check_prompt, "  \n")
    assert "2001 characters" in refusal(check_prompt, "a" * 2001)
    assert check_number({"seed": MAX_SEED}, "seed", 0, MAX_SEED, 1) == MAX_SEED
    for value in (None, "", "7", True, float("nan"), float("inf"), [], -1, 2**53):
        assert "give a number from 0" in refusal(check_number, {"seed": value}, "seed", 0, MAX_SEED, 1)
    assert "multiple of 8, such as 96" in refusal(check_number, {"width": 100}, "width", 8, 1000, 8)


def test_token_merging_is_a_preset_or_custom_and_never_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"ratio": 0.5}')
    assert check_tome(FORM) == ToMeConfig(method="prune", ratio=0.3, cache=0.4)
    assert check_tome(FORM | {"preset": "balanced", "cache": 0}) == ToMeConfig.named("balanced")
    for changes, words in (
        ({"preset": str(path)}, "there is no preset"), ({"preset": None}, "must be the name of a preset"),
        ({"ratio": 0.75}, "must be at least 0 and below 0.75"), ({"cache": 0.8}, "give a number from 0 to 0.7"),
    ):  # fmt: skip
        assert words in refusal(check_tome, FORM | changes)


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


@pytest.mark.parametrize("kind", ["text", "postscript", "cut off", "too large"])
def test_files_that_are_no_images_are_refused(kind: str, bright_square: Image.Image) -> None:
    content = {
        "text": b"<svg/>", "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n", "cut off": encode_image(bright_square)[:-200],
        "too large": encode_image(Image.new("1", (13000, 13000))) if kind == "too large" else b"",
    }[kind]  # fmt: skip
    assert "cannot be read; choose an image of at most 89 megapixels, of PNG" in refusal(read_photo, content)


def test_words_have_the_same_placeholders_in_both_languages_and_are_used() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(i18n.__file__).parents[1].rglob("*.py"))
    for key, (english, chinese) in WORDS.items():
        placeholders = [{name for _, name, _, _ in Formatter().parse(text) if name} for text in (english, chinese)]
        assert placeholders[0] == placeholders[1], key
        assert source.count(f'"{key}"') + source.count(f"'{key}'") > 1, f"{key} is used"
    accepted = ("", "zh-CN,zh;q=0.9,en;q=0.8", "fr,zh-TW;q=0.7,en;q=0.2", "fr", "x" * 9**5)
    assert list(map(choose_language, accepted)) == ["en", "zh", "zh", "en", "en"]
