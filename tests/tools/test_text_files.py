"""Text files of any system are read alike, and what is not Unicode is refused with the command that converts it."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

import pytest

from ppdiffusers_tome import ToMeConfig, ToMeValueError
from ppdiffusers_tome.tools.text_files import decode_text, read_text

TEXT = "a red star\nein grüner Stern ⭐\n一只猫\n"
MARKS = {
    "utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE, "utf-32-be": codecs.BOM_UTF32_BE,
}  # fmt: skip


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("has_mark", [True, False])
@pytest.mark.parametrize("encoding", MARKS)
def test_unicode_is_read_with_any_mark_and_line_end(encoding, has_mark, line_end, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes((MARKS[encoding] if has_mark else b"") + TEXT.replace("\n", line_end).encode(encoding))
    assert read_text(file) == TEXT


@pytest.mark.parametrize("encoding", MARKS)
def test_a_settings_file_may_be_in_any_of_them(encoding: str, tmp_path: Path):
    (tmp_path / "mine.json").write_bytes(MARKS[encoding] + ToMeConfig(0.25, seed=3).to_json().encode(encoding))
    assert ToMeConfig.load(tmp_path / "mine.json") == ToMeConfig(0.25, seed=3)


@pytest.mark.parametrize(
    ("text", "encoding", "guess"),
    [("一只猫在桌子上", "gbk", "GB18030"), ("a cat\n一只猫", "gb18030", "GB18030"), ("Größe", "latin-1", "CP1252")],
)
def test_other_encodings_are_guessed_in_the_error(text, encoding, guess):
    with pytest.raises(ToMeValueError, match=f"not text in UTF-8; .*{text.split()[-1]}.*iconv -f {guess} -t UTF-8"):
        decode_text(text.encode(encoding))


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a cat\0on a table", "null"), (b"\xff\xfea", "UTF-16"), (b"\x81", "save"), (b"\0" * 8, "null")],
)
def test_what_is_no_text_is_refused(content, words, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ToMeValueError, match=words):
        decode_text(content)
    with pytest.raises(ToMeValueError, match=r"a\.json cannot be read as settings"):
        ToMeConfig.load(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["Größe Straße", "Señor Ñandú ÀÉÎ", "красная звезда", "الحب ليلى", "ёлка", "日本 ⭐"])
def test_text_in_other_scripts_is_utf_8(text):
    assert decode_text(text.encode()) == text


def test_without_charset_normalizer_there_is_no_guess(monkeypatch):
    monkeypatch.setitem(sys.modules, "charset_normalizer", None)
    with pytest.raises(ToMeValueError, match="save the file as UTF-8"):
        decode_text("一只猫".encode("gbk"))


def test_files_that_cannot_be_opened_are_refused_in_words(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt", "nul\0byte"):
        with pytest.raises(ToMeValueError):
            read_text(path)
