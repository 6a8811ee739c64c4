"""Text files of users, from any system. Needs no Paddle."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

from ppdiffusers_tome.errors import ToMeValueError

_MAX_CHARACTERS = 40  # of a text in an error


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
    encoding = json.detect_encoding(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        remedy = f"; {_suggest_conversion(content)}" if encoding == "utf-8" else f" ({error.reason})"
        raise ToMeValueError(f"it is not text in {encoding.upper()}{remedy}") from error
    if encoding == "utf-8" and _is_gbk_by_chance(text):
        raise ToMeValueError(f"it is not text in UTF-8; {_suggest_conversion(content)}")
    if "\0" in text:
        raise ToMeValueError("it has a null character, which no text has; remove it, or save the file as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _suggest_conversion(content: bytes) -> str:
    """Say how to convert bytes that are not UTF-8; half a sentence."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return "save the file as UTF-8"
    guess = from_bytes(content, cp_isolation=["gb18030", "cp1252"]).best()
    if guess is None:
        return "save the file as UTF-8"
    name = {"gb18030": "GB18030 (GBK)", "cp1252": "Windows-1252"}[guess.encoding]
    text = " ".join(str(guess).split())
    text = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
    return (
        f"it may be {name}, in which it reads {text!r}; convert it, such as with "
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
