"""Text that is not UTF-8: what it may be instead, and how to convert it. Knows no Paddle."""

from __future__ import annotations

import codecs
import re

_MARKS = {  # the longer ones first, as one begins with another
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip
_SHOWN = 40  # characters
# Of text that is in GBK nearly all is of its first and oldest part, and the most frequent half of that is never far;
# bytes that fit by chance are of any.
_COMMON, _FREQUENT, _FREQUENT_ROWS = 0.8, 0.25, (0xA1, 0xD7)
_LEAST_ZEROS = 0.125  # of text in UTF-16 that is UTF-8 as well
# Letters of two bytes in UTF-8, by script: Latin, Greek, Cyrillic, Armenian, Hebrew, Arabic and later ones.
_SCRIPTS = re.compile("([À-ÖØ-öø-\u02af])|([\u0370-\u03ff])|([\u0400-\u052f])|([\u0530-\u058f])|([\u0590-\u05ff])|"
                      "([\u0600-\u07ff])")  # fmt: skip


def other_encoding(content: bytes) -> str | None:
    """What the first bytes of a file are, where every two or four of them are a letter, and what to do with it.

    Half a sentence; None where they may be UTF-8, perhaps with a null byte that went astray.
    """
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return f"it is {name}; {_converted_from(name)}"
    zeros = content.count(0)
    if not zeros or (zeros < _LEAST_ZEROS * len(content) and _may_be_utf_8(content)):
        return None
    name = _wide(content)
    return f"it may be {name[:6]}; {_converted_from(name)}"


def how_to_convert(content: bytes) -> str:
    """What to do with bytes that are not UTF-8: half a sentence."""
    if (other := other_encoding(content)) is not None:
        return other
    text = _read_as_gbk(content)
    if text is None:
        return "save the file as UTF-8"
    text = " ".join(text.split())
    begins = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"it may be GBK, in which it reads {begins!r}; {_converted_from('GB18030')}"


def text_of(content: bytes) -> str:
    """A whole file in UTF-8, without its mark.

    Raises:
        ValueError: it is something else, or was; the message is the second half of a sentence about the file.
    """
    if (other := other_encoding(content)) is not None:
        raise ValueError(f"is not UTF-8; {other}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8; {how_to_convert(content)}") from error
    if (wrong := what_is_wrong(text)) is not None:
        raise ValueError(wrong)
    return text


def what_is_wrong(text: str) -> str | None:
    """What tells of a text that it was not meant as it was read, the second half of a sentence; None for nothing.

    Some short Chinese texts in GBK are UTF-8 as well. Letters of several scripts are in one word then.
    """
    if "\0" in text:
        return "holds a null character, which no text has; take it out, or save the file as UTF-8"
    if text.isascii():
        return None
    scripts = ({found.lastindex for found in _SCRIPTS.finditer(word)} for word in text.split())
    if not any(len(found) > 1 for found in scripts):
        return None
    content = text.encode()
    return None if _read_as_gbk(content) is None else f"does not look like UTF-8; {how_to_convert(content)}"


def _may_be_utf_8(content: bytes) -> bool:
    """Whether it is, but for a letter that may be cut off at the end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError:
        return False
    return True


def _wide(content: bytes) -> str:
    """The most likely encoding of those with two or four bytes a letter."""
    if b"\0\0" in (content[:2], content[2:4]):
        return "UTF-32BE" if content[:2] == b"\0\0" else "UTF-32LE"

    def plain(name: str) -> int:
        text = content[: len(content) // 2 * 2].decode(name, "replace")
        return sum(letter.isspace() or (letter.isprintable() and _is_common(letter)) for letter in text)

    return max(("UTF-16LE", "UTF-16BE"), key=plain)


def _converted_from(encoding: str) -> str:
    return f"save the file as UTF-8, such as with: iconv -f {encoding} -t UTF-8 OLD > NEW"


def _read_as_gbk(content: bytes) -> str | None:
    """The text in GBK (or its larger kin GB18030); None where that makes no sense."""
    try:
        text = content.decode("gb18030")
    except UnicodeDecodeError:
        return None
    beyond = [letter for letter in text if not letter.isascii()]
    common = sum(map(_is_common, beyond))
    # Accents are amid Latin letters, where Chinese words seldom are.
    amid = len(re.findall(r"(?<=[A-Za-z])[^\x00-\x7f](?=[A-Za-z])", text))
    frequent = sum(map(_is_frequent, beyond))
    likely = common >= _COMMON * len(beyond) and amid <= len(beyond) / 2 and (
        len(beyond) < 3 or frequent >= _FREQUENT * len(beyond)
    )
    return text if beyond and likely else None


def _is_common(letter: str) -> bool:
    try:
        letter.encode("gb2312")
    except UnicodeEncodeError:
        return False
    return True


def _is_frequent(letter: str) -> bool:
    first, last = _FREQUENT_ROWS
    return _is_common(letter) and first <= letter.encode("gb2312")[0] <= last
