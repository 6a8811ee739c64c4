"""Text files of users, from any system. Needs no Paddle."""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
from pathlib import Path

from ppdiffusers_tome.errors import ToMeValueError

# UTF-32 before UTF-16, whose mark is its beginning.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
_GUESSES = ["gb18030", "cp1252"]
_SHOWN_CHARACTERS = 40


def read_text(path: str | Path) -> str:
    r"""Read a text file whose line ends become ``\n``.

    Raises:
        ToMeValueError: the file cannot be read, or it is not text in Unicode; see ``decode_text``.
    """
    try:
        return decode_text(Path(path).read_bytes())
    except OSError as error:
        raise ToMeValueError(f"{path} cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise ToMeValueError(f"{path}: {error}") from error


def decode_text(content: bytes) -> str:
    r"""Decode a file in UTF-8, UTF-16 or UTF-32.

    Returns:
        The text without its byte order mark; line ends (CR, LF or both) are ``\n``.

    Raises:
        ToMeValueError: it is not such text. Another encoding is guessed in the error, not read: a wrong guess would
            pass unnoticed.

    Example:
        >>> decode_text(b"\xef\xbb\xbfa cat\r\na dog\r")
        'a cat\na dog\n'
    """
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    try:
        text = content.decode(encoding or _detect_width(content))
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise ToMeValueError(f"it is not text in {encoding[:6].upper()} ({error.reason})") from error
        raise ToMeValueError(f"it is not text in UTF-8; {suggest_conversion(content)}") from error
    if encoding is None and _is_gbk_by_chance(text):
        raise ToMeValueError(f"it is not text in UTF-8; {suggest_conversion(content)}")
    if "\0" in text:
        raise ToMeValueError("it has a null character, which no text has; remove it, or save the file as UTF-8")
    return io.IncrementalNewlineDecoder(None, translate=True).decode(text, final=True)


def suggest_conversion(content: bytes) -> str:
    """Say how to convert bytes that are not UTF-8; half a sentence."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return "save the file as UTF-8"
    guess = from_bytes(content, cp_isolation=_GUESSES).best()
    if guess is None:
        return "save the file as UTF-8"
    name = {"gb18030": "GB18030 (GBK)", "cp1252": "Windows-1252"}[guess.encoding]
    text = " ".join(str(guess).split())
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return (
        f"it may be {name}, in which it reads {shown!r}; convert it, such as with "
        f"iconv -f {guess.encoding.upper()} -t UTF-8 OLD > NEW"
    )


def _is_gbk_by_chance(text: str) -> bool:
    """Return whether short Chinese text in GBK was valid UTF-8, too.

    Its words then mix letters of several scripts that have two bytes in UTF-8.
    """
    for word in re.findall("[\u00c0-\u07ff]+", text):
        letters = [letter for letter in word if unicodedata.category(letter) in ("Ll", "Lu", "Lo")]
        if len({unicodedata.name(letter, "").split(" ")[0] for letter in letters}) > 1:
            return True
    return False


def _detect_width(content: bytes) -> str:
    """Return the encoding of Unicode by the zeros of its ASCII characters."""
    zeros, quarter = [content[place::4].count(0) for place in range(4)], len(content) // 4
    if sum(zeros) <= len(content) // 8:
        return "utf-8"
    # In UTF-32 one end of every character is zero, and beside it nearly always.
    if zeros[3] == quarter and zeros[2] > quarter // 2:
        return "utf-32-le"
    if zeros[0] == quarter and zeros[1] > quarter // 2:
        return "utf-32-be"
    return "utf-16-le" if zeros[0] + zeros[2] < zeros[1] + zeros[3] else "utf-16-be"
