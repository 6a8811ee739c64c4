"""Text files of any system are read alike, and what is not Unicode is refused with the command that converts it."""

from __future__ import annotations

import codecs

import pytest

from ppdiffusers_tome import ToMeConfig, ToMeValueError
from ppdiffusers_tome.tools.text_files import read_text

TEXT = "a red star\nein grüner Stern ⭐\n一只猫\n"
MARKS = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-32-be": codecs.BOM_UTF32_BE}


@pytest.mark.parametrize("encoding", MARKS)
def test_unicode_is_read_with_any_mark_and_line_end(encoding, tmp_path):
    file = tmp_path / "prompts.txt"
    for mark, line_end in ((MARKS[encoding], "\r\n"), (b"", "\r")):
        file.write_bytes(mark + TEXT.replace("\n", line_end).encode(encoding))
        assert read_text(file) == TEXT
    file.write_bytes(MARKS[encoding] + ToMeConfig(0.25, seed=3).to_json().encode(encoding))
    assert ToMeConfig.load(file) == ToMeConfig(0.25, seed=3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("一只猫在桌子上".encode("gbk"), "iconv -f GB18030 -t UTF-8"), (b"a cat\0on a table", "null"),
        (b"\xff\xfea", "UTF-16"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused(content, words, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ToMeValueError, match=words):
        read_text(tmp_path / "a.json")
    with pytest.raises(ToMeValueError, match=r"a\.json cannot be read as settings"):
        ToMeConfig.load(tmp_path / "a.json")
    for path in (tmp_path, "nul\0byte"):
        with pytest.raises(ToMeValueError, match="cannot be read"):
            read_text(path)
